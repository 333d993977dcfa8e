"""The model as ptqc sees it: nodes, layers with their weights, sites of activations."""
