"""The training step as a pure function, and the wrappers around it."""
