"""What is said of the delivered file: how good and how fast it is, and what changed."""
