"""What several rewrites share."""
