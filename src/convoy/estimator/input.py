"""Input data of estimators: what an input function returns, as batches with named arrays."""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import jax
import keras
import numpy as np
from convoy.estimator.spec import ModeKeys
from convoy.types import Data, PyTree

DEFAULT_BATCH = 32


class Element(NamedTuple):
    """One batch: arrays, or dicts or tuples of arrays."""

    features: PyTree
    labels: PyTree = None

    def named(self) -> dict[str, PyTree]:
        """Return all arrays by the names of the network's inputs."""
        return _named("features", self.features) | _named("labels", self.labels)

    @property
    def samples(self) -> int:
        return int(jax.tree.leaves(self.features)[0].shape[0])


class Signature:
    """The shapes and dtypes of the batches for which a network is built."""

    def __init__(self, element: Element) -> None:
        self.element = element
        self.key = tuple(
            (name, tuple(array.shape), str(array.dtype)) for name, array in element.named().items()
        )

    def tensors(self) -> Element:
        """Return new symbolic inputs of a network, in the structure of a batch."""
        made = {
            name: keras.Input(array.shape[1:], dtype=str(array.dtype), name=name)
            for name, array in self.element.named().items()
        }
        return Element(
            *(
                jax.tree.unflatten(jax.tree.structure(part), [made[n] for n in _named(word, part)])
                for word, part in zip(Element._fields, self.element, strict=True)
            )
        )


class ArrayInput:
    """A dataset of batches from arrays.

    Args:
        features: an array, or a dict of arrays.
        labels: an array, a dict of arrays, or `None`.
        batch_size: samples per batch.
        shuffle: whether each pass has its own random order.
        passes: number of passes over the arrays; `None` repeats them without end.
        seed: random seed of the orders; by default drawn from NumPy's global generator.
        drop_remainder: whether an incomplete last batch is left out.

    Raises:
        ValueError: if the arrays differ in length, or do not fill a batch.
    """

    def __init__(
        self,
        features: PyTree,
        labels: PyTree = None,
        *,
        batch_size: int,
        shuffle: bool = False,
        passes: int | None = 1,
        seed: int | None = None,
        drop_remainder: bool = True,
    ) -> None:
        self.features, self.labels = jax.tree.map(np.asarray, (features, labels))
        lengths = {len(array) for array in jax.tree.leaves((self.features, self.labels))}
        if len(lengths) != 1:
            raise ValueError(f"The arrays differ in length: {sorted(lengths)}. Trim them.")
        (self.samples,) = lengths
        if batch_size < 1 or (drop_remainder and self.samples < batch_size):
            raise ValueError(
                f"{self.samples} samples do not fill a batch of {batch_size}. Pass a batch size "
                f"from 1 to {self.samples}."
            )
        self.batch_size, self.shuffle, self.passes = batch_size, shuffle, passes
        self.seed, self.drop_remainder = seed, drop_remainder

    def __iter__(self) -> Iterator[PyTree]:
        seed = np.random.randint(2**31) if self.seed is None and self.shuffle else self.seed
        rng = np.random.default_rng(seed)
        size = self.batch_size
        end = self.samples - self.samples % size if self.drop_remainder else self.samples
        for _ in itertools.count() if self.passes is None else range(self.passes):
            order = rng.permutation(self.samples) if self.shuffle else None
            for start in range(0, end, size):
                window = slice(start, start + size)  # a view: unshuffled arrays are not copied
                chosen = window if order is None else order[window]
                features, labels = jax.tree.map(
                    lambda array, chosen=chosen: array[chosen], (self.features, self.labels)
                )
                yield features if labels is None else (features, labels)


def elements(returned: Data, mode: str, batch_size: int | None) -> Iterator[Element]:
    """Return the batches of what an input function returned.

    Args:
        returned: a dataset, or arrays: features, or a tuple of features and labels.
        mode: one of `ModeKeys`. In `TRAIN`, arrays are shuffled and repeated.
        batch_size: batch size of arrays.

    Raises:
        ValueError: if it is neither.
    """
    if is_arrays(returned):
        features, labels = as_element(returned)
        training = mode == ModeKeys.TRAIN
        returned = ArrayInput(
            features,
            labels,
            batch_size=batch_size or DEFAULT_BATCH,
            shuffle=training,
            passes=None if training else 1,
            drop_remainder=training,
        )
    try:
        items = iterate(returned)
    except TypeError:
        raise ValueError(
            f"The input function returned {type(returned).__name__}, not a dataset or arrays. "
            "Return one of these."
        ) from None
    for item in items:
        element = as_element(item)
        labels = None if mode == ModeKeys.PREDICT else element.labels
        yield Element(*jax.tree.map(np.asarray, (element.features, labels)))


def as_element(item: PyTree) -> Element:
    """Split an item of a dataset into features and labels.

    Raises:
        ValueError: if it has more parts than these two.
    """
    if isinstance(item, (tuple, list)):
        if not 1 <= len(item) <= 2:
            raise ValueError(
                f"The data has items of {len(item)} parts. Return features, or features and labels."
            )
        return Element(*item)
    if isinstance(item, dict) and "features" in item and set(item) <= {"features", "labels"}:
        return Element(item["features"], item.get("labels"))
    return Element(item)


def is_arrays(returned: Data) -> bool:
    """Return whether an input function returned arrays rather than a dataset."""
    if isinstance(returned, dict):
        return bool(returned) and all(map(is_arrays, returned.values()))
    if isinstance(returned, tuple):
        return bool(returned) and all(is_arrays(part) for part in returned if part is not None)
    return isinstance(returned, (np.ndarray, jax.Array))


def iterate(dataset: Data) -> Iterator[PyTree]:
    """Return an iterator over a `PyDataset`, a `tf.data.Dataset` or another iterable."""
    if isinstance(dataset, keras.utils.PyDataset):
        length = dataset.num_batches
        indices = itertools.count() if length is None else range(length)
        return (dataset[index] for index in indices)
    as_numpy = getattr(dataset, "as_numpy_iterator", None)
    return iter(dataset if as_numpy is None else as_numpy())


def _named(word: str, tree: PyTree) -> dict[str, PyTree]:
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        parts = [str(getattr(part, "key", getattr(part, "idx", part))) for part in path]
        found[re.sub(r"\W", "_", "_".join([word, *parts]))] = leaf
    return found
