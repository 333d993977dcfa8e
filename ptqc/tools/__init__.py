"""What the commands beside compile do: bench, compare, doctor, eval, inspect, run, sweep."""
