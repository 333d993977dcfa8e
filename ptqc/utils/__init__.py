"""How work is done: on several processors, within a time, with progress, and ended when asked."""
