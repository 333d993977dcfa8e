"""`python -m ptqc` is `ptqc`."""

import sys

from ptqc.cli import main

sys.exit(main())
