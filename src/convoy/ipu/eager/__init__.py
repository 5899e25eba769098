"""Differentiation of functions."""

from convoy.ipu.eager import backprop

__all__ = ["backprop"]
