"""Datasets, their files, augmentation, and batches made by worker processes."""

from convoy.data.catalog import DATASETS, Dataset, DatasetInfo, load, load_digits

__all__ = ["DATASETS", "Dataset", "DatasetInfo", "load", "load_digits"]
