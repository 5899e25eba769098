"""Runs commands that a spec lists, and reads figures from what they print."""
