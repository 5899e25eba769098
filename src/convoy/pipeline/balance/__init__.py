"""Balanced stages: measured costs of layers, and the partition of layers into stages."""
