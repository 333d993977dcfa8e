"""What targets for runtimes of others share: the QDQ form of a lowered graph, and how what they give is compared."""
