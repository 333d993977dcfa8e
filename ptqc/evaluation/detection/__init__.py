"""How detectors write down what they find, and how well they find it."""
