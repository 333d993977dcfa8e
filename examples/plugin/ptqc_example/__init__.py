"""One of each kind of thing that a package can add to ptqc; pyproject.toml says where each lies."""
