"""Emission of the one lowered graph for its targets."""

if not __name__.startswith("ptqc."):
    raise ImportError("import ptqc.codegen, not codegen: a second copy of every class would not compare equal")
