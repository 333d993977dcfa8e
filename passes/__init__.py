"""The steps of a compile that change the model or the plan: one file per pass.

A pass is a frozen dataclass: its fields are its options, `apply` does the work and returns notes. Every place that a
pass could have changed is either changed or named in a note with the reason.
"""

if not __name__.startswith("ptqc."):
    raise ImportError("import ptqc.passes, not passes: a second copy of every class would not compare equal")
