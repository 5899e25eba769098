"""The engine: a pure training step, its wrappers, and the loop that runs it on the devices."""
