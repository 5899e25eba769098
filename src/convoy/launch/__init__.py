"""Launching one run in several processes, on one host or many (`convoy launch`)."""
