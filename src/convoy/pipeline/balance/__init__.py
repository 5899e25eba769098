"""Balanced stages: layer costs, and where to split a model by them."""
