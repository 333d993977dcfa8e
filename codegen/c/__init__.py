"""Source in C99 for microcontrollers, with the weights packed in flash."""
