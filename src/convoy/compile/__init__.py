"""Compilation of a model's programs for devices of other machines, and their analysis."""
