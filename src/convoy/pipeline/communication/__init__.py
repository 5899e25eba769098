"""Communication between stages, also across processes."""
