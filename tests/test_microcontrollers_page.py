"""docs/deploy/microcontrollers.md lists the operators of the target c, and its C compiles."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ptqc.codegen.c.lowering import BETWEEN_CODES, ON_CODES, OPERATORS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "deploy" / "microcontrollers.md"
# What the header of the page's networks and its program have.
KWS = """
#include <stdint.h>
#include <string.h>
enum { PTQC_KWS_IN_INPUT_ELEMENTS = 4, PTQC_KWS_OUT_LOGITS_ELEMENTS = 2, YES = 1 };
int ptqc_kws_run(const uint8_t *in_input, float *out_logits);
int ptqc_kws_push(const uint8_t *in_input, float *out_logits);
void ptqc_kws_reset(void);
int next_frame(uint8_t *codes);
void decide(const float *logits);
void read_spectrogram(uint8_t *codes);
void set_led(int on);
void listen(void);
"""
VAD = """
enum { PTQC_VAD_IN_STATE_ELEMENTS = 4, PTQC_VAD_OUT_STATEN_ELEMENTS = 4, PTQC_VAD_IN_INPUT_ELEMENTS = 2 };
int ptqc_vad_run(const uint8_t *in_input, const float *in_state, float *out_output, float *out_staten);
void read_frame(uint8_t *codes);
#define PTQC_VAD_IN_STATE_NEXT(value) (value)
"""


def test_operators_are_those_of_the_target() -> None:
    _, _, section = PAGE.read_text(encoding="utf-8").partition("\n## Operators\n")
    table = section.partition("\n## ")[0]
    listed = set(re.findall(r"`([A-Z]\w+)`", table))
    assert listed == {*ON_CODES, *BETWEEN_CODES, *OPERATORS}


def test_its_code_compiles(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    call, state, frames = re.findall(r"```c\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    frames = f"void follow(uint8_t *frame, float *logits);\nvoid follow(uint8_t *frame, float *logits) {{\n{frames}}}\n"
    declared, called = state.partition("\n\n")[::2]
    (tmp_path / "kws.h").write_text(KWS)
    source = tmp_path / "program.c"
    source.write_text(f"{call}\n{frames}{VAD}{declared}\nint main(void) {{\n{called}return 0;\n}}\n")
    command = [compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}", "-c", str(source)]
    done = subprocess.run([*command, "-o", str(tmp_path / "program.o")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
