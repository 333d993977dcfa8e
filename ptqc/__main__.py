"""`python -m ptqc` is `ptqc`."""

from ptqc.cli import run

run()
