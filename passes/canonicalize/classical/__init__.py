"""The rewrite of classical learners, operator family by operator family."""
