"""`python -m ptqc` is `ptqc`."""

from ptqc.cli.main import run

run()
