"""The CNN application: trains and validates image classifiers from the command line."""
