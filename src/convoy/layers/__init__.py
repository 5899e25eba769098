"""Layers of the models that `convoy train` builds. Importing them lets Keras load such models."""

from convoy.layers.batch_normalization import UpdateBatchNormalization
from convoy.layers.cifar_fast import Dirac, Offset, Whiten
from convoy.layers.preprocessing import Decompress, Preprocess, SyntheticImages
from convoy.layers.subsample import Subsample
from convoy.layers.test_time_augmentation import MeanOfViews, Views

__all__ = [
    "Decompress",
    "Dirac",
    "MeanOfViews",
    "Offset",
    "Preprocess",
    "Subsample",
    "SyntheticImages",
    "UpdateBatchNormalization",
    "Views",
    "Whiten",
]
