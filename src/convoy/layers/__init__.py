"""Layers of models that `convoy train` makes; importing them lets Keras read such models."""

from convoy.layers.dirac import Dirac
from convoy.layers.images import Decompress, Preprocess, SyntheticImages
from convoy.layers.normalization import UpdateBatchNormalization
from convoy.layers.offset import Offset
from convoy.layers.views import MeanOfViews, Views
from convoy.layers.whiten import Whiten

__all__ = [
    "Decompress",
    "Dirac",
    "MeanOfViews",
    "Offset",
    "Preprocess",
    "SyntheticImages",
    "UpdateBatchNormalization",
    "Views",
    "Whiten",
]
