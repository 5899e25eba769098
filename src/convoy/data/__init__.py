"""Data sets."""

from convoy.data.catalog import DATASETS, Dataset, DatasetInfo, load
from convoy.data.digits import load_digits

__all__ = ["DATASETS", "Dataset", "DatasetInfo", "load", "load_digits"]
