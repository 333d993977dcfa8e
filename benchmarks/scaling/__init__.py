"""How long compiles take on more workers: what real ones took, and a simulation that is fed with it."""
