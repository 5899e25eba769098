"""LARS, and wrappers that add regularisation, clipping or Lookahead to any Keras optimizer."""

from convoy.optimizers.lars import LARS
from convoy.optimizers.lookahead import Lookahead
from convoy.optimizers.regularized import Regularized

__all__ = ["LARS", "Lookahead", "Regularized"]
