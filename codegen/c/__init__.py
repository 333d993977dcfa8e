"""The compiled network as C99, for microcontrollers and whatever else has a C compiler."""
