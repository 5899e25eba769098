"""Layers of models that `convoy train` makes; importing them lets Keras read such models."""

from convoy.layers.images import Decompress, Preprocess, SyntheticImages
from convoy.layers.normalization import UpdateBatchNormalization

__all__ = ["Decompress", "Preprocess", "SyntheticImages", "UpdateBatchNormalization"]
