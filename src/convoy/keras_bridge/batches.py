"""Batches of whatever `fit` takes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
from convoy.keras_bridge.models import build_for_batch, build_for_prediction
from keras import Model
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter, can_convert_arrays
from keras.src.trainers.data_adapters.grain_dataset_adapter import GrainDatasetAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

unpack = data_adapter_utils.unpack_x_y_sample_weight
train_validation_split = array_slicing.train_validation_split
is_array_data = can_convert_arrays
class_weight_to_sample_weights = data_adapter_utils.class_weight_to_sample_weights


class Batches(EpochIterator):
    """Keras's own walk over any kind of input, one batch of host arrays at a time.

    The order of batches, the draws from NumPy's generator, workers, and where an epoch ends are
    Keras's own, so they are the same as under stock Keras.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._length_known = self.num_batches is not None
        self._unread = 0
        self._is_read: Callable[[int], bool] | None = None

    def _get_iterator(self) -> Iterator[Any]:
        if self._is_read is not None:
            _leave_out_in_data_set(self.data_adapter, self._is_read)
        unread, self._unread = self._unread, 0
        if unread and isinstance(self.data_adapter, ArrayDataAdapter):
            return _skip_arrays(self.data_adapter, unread)
        return self.data_adapter.get_jax_iterator()

    @property
    def taken_before(self) -> int:
        """Batches that earlier epochs have taken of the walk that the next one goes on with."""
        goes_on = self.steps_per_epoch is not None and self._current_iterator is not None
        return self._steps_seen if goes_on else 0

    def seek(self, before: int, done: int) -> None:
        """Have the next epoch begin where its first `done` batches have been walked over.

        The batches are handed out, but hold nothing where the input can do without reading them.

        Args:
            before: batches that earlier epochs have taken of the walk.
            done: batches that the epoch itself has taken.
        """
        self._unread = before + done
        if isinstance(self.data_adapter, PyDatasetAdapter):
            _skip_in_data_set(self.data_adapter, self._unread)
        if self.steps_per_epoch is None:
            return
        self._current_iterator = iter(self._get_iterator())
        for _ in itertools.islice(self._current_iterator, before):
            pass
        self._steps_seen = before

    def read_only(self, is_read: Callable[[int], bool]) -> bool:
        """Have some batches of every epoch hold zeros, where the input can do without reading them.

        Args:
            is_read: says of the place of a batch in the epoch whether it is read.

        Returns:
            Whether that can be done.
        """
        adapter = self.data_adapter
        possible = isinstance(adapter, PyDatasetAdapter) and self.num_batches is not None
        if possible and self.steps_per_epoch is None:
            self._is_read = is_read
        return self._is_read is not None

    def drop_read_ahead(self) -> None:
        """Forget what workers have read beyond the one batch that building the model took.

        Keras hands it out again at the start of the first epoch. How much that is depends on how
        fast the workers are, so it can not be the same in a run that goes on.
        """
        enqueuer = getattr(self.data_adapter, "enqueuer", None)
        if enqueuer is not None and self.data_adapter.num_batches is not None:
            while not enqueuer.ready_queue.empty():
                enqueuer.ready_queue.get_nowait()

    @property
    def why_not_resumable(self) -> str | None:
        """What stands in the way of an exact `seek`, if something does."""
        adapter = self.data_adapter
        if isinstance(adapter, ArrayDataAdapter | GrainDatasetAdapter):
            return None
        if not isinstance(adapter, PyDatasetAdapter):
            return "its order is its own affair, and cannot be asked for"
        dataset = adapter.py_dataset
        if adapter.enqueuer and self.steps_per_epoch and dataset.num_batches is not None:
            return "with workers and steps_per_epoch, Keras begins its order anew in mid-epoch"
        hooks = [
            name
            for name in ("on_epoch_begin", "on_epoch_end")
            if getattr(type(dataset), name) is not getattr(keras.utils.PyDataset, name)
        ]
        if hooks and not _tells_state(dataset):
            return f"{hooks[0]}() may change it, and it has no get_state() and set_state()"
        return None

    @property
    def kind(self) -> str:
        """What the user passed, for messages."""
        adapter = self.data_adapter
        is_dataset = isinstance(adapter, PyDatasetAdapter)
        return type(adapter.py_dataset if is_dataset else adapter).__name__.removesuffix("Adapter")

    @property
    def samples(self) -> int | None:
        """Samples in the input; only where the batch size is ours."""
        return self.data_adapter._num_samples if self.batch_size_is_ours else None

    @property
    def state(self) -> Any:
        """What a `PyDataset` says of its own state, if it can tell."""
        dataset: Any = getattr(self.data_adapter, "py_dataset", None)
        return dataset.get_state() if _tells_state(dataset) else None

    def set_state(self, state: Any) -> None:
        dataset: Any = getattr(self.data_adapter, "py_dataset", None)
        if state is not None and _tells_state(dataset):
            dataset.set_state(state)

    def _interrupted_warning(self) -> None:
        # An input of unknown length that ends for the first time has done nothing wrong.
        if self.steps_per_epoch or self._length_known:
            super()._interrupted_warning()
        self._length_known = True

    def __next__(self) -> Any:
        _, _, (batch,) = super().__next__()
        return batch

    def build(self, model: Model, mode: str, explain: Callable[[Any], None] | None = None) -> None:
        """Create those variables of model, metrics, loss and optimizer that do not exist yet.

        The input is told of the end of an epoch where stock Keras tells it so.

        Args:
            model: whose they are.
            mode: `"train"`, `"evaluate"` or `"predict"`.
            explain: is called with a batch that Keras refuses, and may say why by an error.
        """
        if mode == "predict":
            if not all(layer.built for layer in model._flatten_layers()):
                x, _, _ = unpack(next(iter(self)))
                build_for_prediction(model, x)
                self.reset()
            return
        batch = next(iter(self)) if self._something_is_unbuilt(model) else None
        build_for_batch(model, batch, partial(explain, batch) if explain else None)
        if mode == "train":
            self.reset()

    @staticmethod
    def _something_is_unbuilt(model: Model) -> bool:
        parts = [*model._flatten_layers(), model._compile_metrics, model._compile_loss]
        return not all(part is None or part.built for part in parts)

    @property
    def arrays(self) -> Any | None:
        """The whole input as a structure of host arrays, or `None` if it is not of that kind."""
        if not isinstance(self.data_adapter, ArrayDataAdapter):
            return None
        sliceable = array_slicing.convert_to_sliceable(self.data_adapter._inputs, "jax")
        leaves = keras.tree.flatten(sliceable)
        if any(
            type(leaf) is not array_slicing.NumpySliceable for leaf in leaves if leaf is not None
        ):
            return None  # sparse and ragged ones, data frames: sliced batch by batch on the host
        return keras.tree.map_structure(lambda leaf: leaf and leaf.array, sliceable)

    @property
    def batch_size_is_ours(self) -> bool:
        """Whether `batch_size` cuts the batches; other inputs come in batches of their own."""
        return isinstance(self.data_adapter, ArrayDataAdapter)

    @property
    def whole_batches(self) -> int | None:
        """Batches of an epoch that are as large as all others, if that is known."""
        known = self.num_batches
        if known is None or self.steps_per_epoch or isinstance(self.data_adapter, PyDatasetAdapter):
            return known  # whether a data set has a smaller batch, it does not say
        return known - 1 if self.data_adapter.has_partial_batch else known

    @property
    def shuffle(self) -> bool | str:
        return self.data_adapter._shuffle

    @property
    def batch_size(self) -> int:
        """Samples in a batch; only where it is ours."""
        return int(self.data_adapter.batch_size)


def _tells_state(dataset: Any) -> bool:
    return all(callable(getattr(dataset, name, None)) for name in ("get_state", "set_state"))


def _skip_in_data_set(adapter: PyDatasetAdapter, count: int) -> None:
    """Have the first batches of the coming epoch hold nothing."""
    order = _order_to_come(adapter) or range(count)
    _use_data_set(adapter, _Unread(adapter.py_dataset, frozenset(order[:count])))


def _leave_out_in_data_set(adapter: PyDatasetAdapter, is_read: Callable[[int], bool]) -> None:
    """Have some batches of the coming epoch hold zeros."""
    if not isinstance(adapter.py_dataset, _Shared):
        _use_data_set(adapter, _Shared(adapter.py_dataset))
    places = enumerate(_order_to_come(adapter))
    adapter.py_dataset.unread = frozenset(index for at, index in places if not is_read(at))


def _order_to_come(adapter: PyDatasetAdapter) -> list[int]:
    """Return the order that the adapter is about to draw; nothing if the data set has no end."""
    length = adapter.py_dataset.num_batches
    order = list(range(length or 0))
    if adapter.shuffle:
        # Without drawing from the generator itself.
        generator = random.Random()
        generator.setstate(random.getstate())
        generator.shuffle(order)
    return order


def _use_data_set(adapter: PyDatasetAdapter, dataset: keras.utils.PyDataset) -> None:
    adapter.py_dataset = dataset
    if adapter.enqueuer:
        adapter.enqueuer.py_dataset = dataset


def _skip_arrays(adapter: ArrayDataAdapter, count: int) -> Iterator[Any]:
    """Walk over arrays whose first batches hold nothing."""
    skipping = True

    def batch(sliceable: Any, indices: Any = None) -> Any:
        return None if skipping else sliceable.convert_to_jax_compatible(sliceable[indices])

    inputs = array_slicing.convert_to_sliceable(adapter._inputs, "jax")
    # A generator: it slices a batch, or does not, when it is asked for that batch.
    for number, sliced in enumerate(adapter._get_iterator(batch, inputs), start=1):
        skipping = number < count
        yield sliced


class _Unread(keras.utils.PyDataset):
    """A data set some batches of which are not read in its first epoch."""

    def __init__(self, dataset: keras.utils.PyDataset, unread: Container[int]) -> None:
        super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
        self.dataset = dataset
        self.unread = unread

    @property
    def num_batches(self) -> int | None:
        return self.dataset.num_batches

    def __getitem__(self, index: int) -> Any:
        return (np.zeros(0),) if index in self.unread else self.dataset[index]

    def on_epoch_begin(self) -> None:
        self.dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self.unread = ()
        self.dataset.on_epoch_end()

    def __getattr__(self, name: str) -> Any:
        if name in ("get_state", "set_state"):
            return getattr(self.dataset, name)
        raise AttributeError(name)


class _Shared(_Unread):
    """A data set some batches of which another process reads; here they hold zeros."""

    def __init__(self, dataset: keras.utils.PyDataset) -> None:
        super().__init__(dataset, ())
        self._zeros = keras.tree.map_structure(np.zeros_like, dataset[0])

    def __getitem__(self, index: int) -> Any:
        return self._zeros if index in self.unread else self.dataset[index]

    def on_epoch_end(self) -> None:
        self.dataset.on_epoch_end()
