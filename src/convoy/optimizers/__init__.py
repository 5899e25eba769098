"""Optimizers beside Keras's own, and what can be put around any of them."""

from convoy.optimizers.lars import LARS
from convoy.optimizers.lookahead import Lookahead
from convoy.optimizers.regularized import Regularized

__all__ = ["LARS", "Lookahead", "Regularized"]
