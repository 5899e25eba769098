"""Graphcore's name for `convoy bench`: `python3 -m examples_utils benchmark ...`."""
