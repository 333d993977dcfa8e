"""What a decoder keeps of earlier tokens, packed: forms of caches, and what puts them around a model."""
