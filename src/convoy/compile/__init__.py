"""Compilation of a model's programs for devices that are not here, and their analysis."""
