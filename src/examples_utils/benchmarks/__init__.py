"""Benchmark specs, by Graphcore's name."""
