"""Numerics of reduced precision: loss scaling and stochastic rounding."""
