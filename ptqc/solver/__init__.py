"""One choice of each group at least cost within limits: an integer program, its solution and the proof."""
