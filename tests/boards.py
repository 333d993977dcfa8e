"""What tests on emulated microcontrollers need: a compiler and an emulator, which must not be absent everywhere."""

import os

import pytest

from ptqc.codegen.c import emulation

ABSENT = emulation.missing()
IS_REQUIRED = "PTQC_MUST_RUN_ON_BOARDS" in os.environ
needs_boards = pytest.mark.skipif(ABSENT is not None and not IS_REQUIRED, reason=str(ABSENT))
