"""Runners of models in pipeline stages: training and inference with a program per stage (MPMD)."""
