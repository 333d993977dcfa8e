"""How good and how fast a file is: agreement with the float model, labels, detection, changed answers."""
