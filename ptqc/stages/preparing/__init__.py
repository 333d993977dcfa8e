"""From what the user gave to a model and samples that can be measured."""
