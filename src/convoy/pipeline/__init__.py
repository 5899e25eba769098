"""A model over several devices, in stages."""
