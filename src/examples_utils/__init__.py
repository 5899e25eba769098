"""`python3 -m examples_utils benchmark ...`, Graphcore's name for `convoy bench`."""
