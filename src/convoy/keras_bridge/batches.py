"""Batches from every kind of input that `fit` takes.

Keras's adapters and its `EpochIterator` are private: public methods run them only together with
Keras's own training loop. They determine the order of samples, the draws from random generators and
the end of an epoch. A copy of them here would differ from stock Keras sooner or later.
"""

import contextlib
import itertools
import random
import types
from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
from convoy import user_warnings
from convoy.keras_bridge.compilability import is_sparse
from convoy.keras_bridge.models import build_for_batch, build_for_prediction, layers_are_built
from keras import Model
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter, can_convert_arrays
from keras.src.trainers.data_adapters.grain_dataset_adapter import GrainDatasetAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

unpack = keras.utils.unpack_x_y_sample_weight
# No public names exist for these: splits of validation data, checks for arrays, class weights.
train_validation_split = array_slicing.train_validation_split
is_array_data = can_convert_arrays
class_weight_to_sample_weights = data_adapter_utils.class_weight_to_sample_weights


def made_dense(batch: Any) -> Any:
    """Convert the sparse matrices and tensors in a batch to dense arrays."""
    if not any(map(is_sparse, keras.tree.flatten(batch))):
        return batch
    user_warnings.warn_once(
        "The input yields sparse batches. Convoy's engine makes them dense. To keep them sparse, "
        "pass run_eagerly=True to compile(): stock Keras then runs the model."
    )
    return keras.tree.map_structure(_dense, batch)


def _dense(value: Any) -> Any:
    if data_adapter_utils.is_scipy_sparse(value):
        return value.toarray()
    if data_adapter_utils.is_tensorflow_sparse(value):
        value = data_adapter_utils.tf_sparse_to_jax_sparse(value)
    return np.asarray(value.todense()) if is_sparse(value) else value


def host_arrays(batch: Any) -> Any:
    """Convert the tensors of other frameworks in a batch to NumPy arrays."""

    def convert(leaf: Any) -> Any:
        is_foreign = data_adapter_utils.is_tensorflow_tensor(leaf)
        is_foreign = is_foreign or data_adapter_utils.is_torch_tensor(leaf)
        return np.asarray(leaf) if is_foreign else leaf

    return keras.tree.map_structure(convert, batch)


def first_inputs(x: Any) -> tuple[Any, Any]:
    """Return the inputs in the first batch of an input, and the input with that batch.

    Arrays are returned as they are. A generator can be read only once, so it is replaced by one
    that starts with this batch.

    Args:
        x: the first argument of `fit`.
    """
    if is_array_data((x, None, None)):
        return x, x
    if isinstance(x, types.GeneratorType):
        batch = next(x)
        return unpack(batch)[0], _restored(batch, x)
    # A `tf.data.Dataset` knows its shapes; reading a batch could start an expensive pipeline.
    spec = getattr(x, "element_spec", None)
    if spec is not None and not any(None in s.shape[1:] for s in keras.tree.flatten(spec)):
        return unpack(spec)[0], x
    batch = x[0] if isinstance(x, keras.utils.PyDataset) else next(iter(Batches(x)))
    return unpack(batch)[0], x


def _restored(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


# The path of the data from `fit` to the engine:
#
#     arrays            -> ArrayDataAdapter   --+
#     PyDataset         -> PyDatasetAdapter   --+--> Batches (EpochIterator) -> Streamed
#     grain, tf.data, torch, generator  -> ...--+         |
#                                                         +--> arrays -> Resident
#
# Keras's adapter draws the order and makes the batches. `Batches` adds the features that a device
# loop and a resumed run need: batches without step numbers, a position to seek to, and access to
# complete arrays.


class Batches(EpochIterator):
    """An iterator over the batches of an input, as host arrays.

    The order of batches, the draws from NumPy's generator, the workers and the end of an epoch are
    those of stock Keras, because its iterator determines them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with _without_step_limit():
            super().__init__(*args, **kwargs)
        self._length_known = self.num_batches is not None
        self._unread = 0
        self._is_read: Callable[[int], bool] | None = None

    # Keras calls it once per epoch, or once for several epochs with `steps_per_epoch`. This
    # override is the only place where batches can be skipped before the adapter reads them.
    def _get_iterator(self) -> Iterator[Any]:
        if self._is_read is not None:
            _leave_out_in_dataset(self.data_adapter, self._is_read)
        unread, self._unread = self._unread, 0
        if unread and isinstance(self.data_adapter, ArrayDataAdapter):
            return _skip_arrays(self.data_adapter, unread)
        return self.data_adapter.get_jax_iterator()

    @property
    def consumed_before(self) -> int:
        """Number of batches that earlier epochs took from the iterator that the next one uses."""
        # With `steps_per_epoch`, Keras keeps one iterator over several epochs.
        goes_on = self.steps_per_epoch is not None and self._current_iterator is not None
        return self._steps_seen if goes_on else 0

    def seek(self, before: int, done: int) -> None:
        """Move the input to the position of an interrupted epoch.

        The next epoch yields all of its batches. If the input can skip reading, the first `done`
        batches contain no data.

        Args:
            before: number of batches that earlier epochs took from the same iterator.
            done: number of batches that the epoch itself took.
        """
        # Epochs that share an iterator share its order, so the batches of earlier epochs are
        # skipped too: their order is drawn, but they are not read.
        self._unread = before + done
        if isinstance(self.data_adapter, PyDatasetAdapter):
            _skip_in_dataset(self.data_adapter, self._unread)
        if self.steps_per_epoch is None:
            return
        self._current_iterator = iter(self._get_iterator())
        for _ in itertools.islice(self._current_iterator, before):
            pass
        self._steps_seen = before

    def read_selected(self, is_read: Callable[[int], bool]) -> bool:
        """Read only some batches of every epoch; the others hold zeros.

        Args:
            is_read: predicate on the position of a batch in its epoch.

        Returns:
            Whether the input supports this.
        """
        adapter = self.data_adapter
        possible = isinstance(adapter, PyDatasetAdapter) and self.num_batches is not None
        if possible and self.steps_per_epoch is None:
            self._is_read = is_read
        return self._is_read is not None

    def drop_read_ahead(self) -> None:
        """Drop the batches that workers read ahead while the model was built.

        Keras yields them again at the start of the first epoch. Their number depends on the speed
        of the workers, so a resumed run could not repeat it.
        """
        enqueuer = getattr(self.data_adapter, "enqueuer", None)
        if enqueuer is not None and self.data_adapter.num_batches is not None:
            while not enqueuer.ready_queue.empty():
                enqueuer.ready_queue.get_nowait()

    @property
    def resume_obstacle(self) -> str | None:
        """The reason why `seek` cannot be exact, or `None`."""
        adapter = self.data_adapter
        if isinstance(adapter, ArrayDataAdapter | GrainDatasetAdapter):
            return None
        if not isinstance(adapter, PyDatasetAdapter):
            return "its order cannot be queried"
        dataset = adapter.py_dataset
        if adapter.enqueuer and self.steps_per_epoch and dataset.num_batches is not None:
            return "with workers and steps_per_epoch, Keras restarts its order in mid-epoch"
        hooks = [
            name
            for name in ("on_epoch_begin", "on_epoch_end")
            if getattr(type(dataset), name) is not getattr(keras.utils.PyDataset, name)
        ]
        if hooks and not has_state(dataset):
            return f"{hooks[0]}() may change it, and it has no get_state() and set_state()"
        return None

    @property
    def samples(self) -> int | None:
        """Number of samples in the input, if it consists of arrays."""
        return self.data_adapter._num_samples if self.sliced_from_arrays else None

    @property
    def state(self) -> Any:
        """The state of a `PyDataset` that has `get_state` and `set_state`, else `None`."""
        dataset: Any = getattr(self.data_adapter, "py_dataset", None)
        return dataset.get_state() if has_state(dataset) else None

    def set_state(self, state: Any) -> None:
        dataset: Any = getattr(self.data_adapter, "py_dataset", None)
        if state is not None and has_state(dataset):
            dataset.set_state(state)

    def _interrupted_warning(self) -> None:
        # The first end of an input of unknown length is not an error: it determines the length.
        if self.steps_per_epoch or self._length_known:
            super()._interrupted_warning()
        self._length_known = True

    def __next__(self) -> Any:
        _, _, (batch,) = super().__next__()
        return made_dense(batch)

    def build(
        self,
        model: Model,
        mode: str,
        explain: Callable[[Any], None] | None = None,
        was_built: bool = True,
    ) -> None:
        """Create the missing variables of model, metrics, loss and optimizer.

        The input's `on_epoch_end` is called where stock Keras calls it.

        Args:
            model: model that is about to run.
            mode: `"train"`, `"evaluate"` or `"predict"`.
            explain: function that receives a batch that Keras rejected; it may raise a clearer
                error.
            was_built: whether all layers were built when the run began. If not, a batch is read, as
                stock Keras does, even if the layers have been built since.
        """
        if mode == "predict":
            if not was_built or not layers_are_built(model):
                x, _, _ = unpack(next(iter(self)))
                build_for_prediction(model, x)
                self.reset()
            return
        parts = [*model._flatten_layers(), model._compile_metrics, model._compile_loss]
        reads = not was_built or not all(part is None or part.built for part in parts)
        if reads or not (model.optimizer is None or model.optimizer.built):
            batch = next(iter(self)) if reads else None
            build_for_batch(model, batch, partial(explain, batch) if explain else None)
        if mode == "train":
            self.reset()

    @property
    def arrays(self) -> Any | None:
        """The input as a structure of host arrays, or `None` if it does not consist of arrays."""
        if not isinstance(self.data_adapter, ArrayDataAdapter):
            return None
        # The adapter keeps the arrays only in this private attribute, after its own conversions.
        sliceable = array_slicing.convert_to_sliceable(self.data_adapter._inputs, "jax")
        leaves = keras.tree.flatten(sliceable)
        if any(
            type(leaf) is not array_slicing.NumpySliceable for leaf in leaves if leaf is not None
        ):
            return None  # sparse arrays, ragged arrays, data frames: sliced per batch on the host
        return keras.tree.map_structure(lambda leaf: leaf and leaf.array, sliceable)

    @property
    def sliced_from_arrays(self) -> bool:
        """Whether batches are slices of arrays; other inputs determine their own batch sizes."""
        return isinstance(self.data_adapter, ArrayDataAdapter)

    @property
    def full_batches(self) -> int | None:
        """Number of full batches in an epoch, if it is known."""
        known = self.num_batches
        if known is None or self.steps_per_epoch or isinstance(self.data_adapter, PyDatasetAdapter):
            return known  # an incomplete batch of a dataset cannot be foreseen
        return known - 1 if self.data_adapter.has_partial_batch else known

    @property
    def shuffle(self) -> bool | str:
        return self.data_adapter._shuffle

    @property
    def batch_size(self) -> int:
        """Number of samples in a batch, if the input consists of arrays."""
        return int(self.data_adapter.batch_size)


@contextlib.contextmanager
def _without_step_limit() -> Iterator[None]:
    """Suspend `keras.config.set_max_steps_per_epoch`, which limits steps, not batches.

    A step has a batch for each replica. `limit_steps` applies the limit to the steps.
    """
    # The setting is global: `EpochIterator.__init__` has no argument for it.
    limit = keras.config.max_steps_per_epoch()
    keras.config.set_max_steps_per_epoch(None)
    try:
        yield
    finally:
        keras.config.set_max_steps_per_epoch(limit)


def has_state(owner: Any) -> bool:
    """Return whether a dataset or a callback has methods that save and restore its state."""
    return all(callable(getattr(owner, name, None)) for name in ("get_state", "set_state"))


def _skip_in_dataset(adapter: PyDatasetAdapter, count: int) -> None:
    """Skip reading the first batches of the next epoch."""
    order = _next_order(adapter) or range(count)
    _use_dataset(adapter, _PartlyRead(adapter.py_dataset, frozenset(order[:count])))


def _leave_out_in_dataset(adapter: PyDatasetAdapter, is_read: Callable[[int], bool]) -> None:
    """Fill the batches of the next epoch that this process does not read with zeros."""
    if not isinstance(adapter.py_dataset, _ReadByOthers):
        _use_dataset(adapter, _ReadByOthers(adapter.py_dataset))
    order = enumerate(_next_order(adapter))
    adapter.py_dataset.unread = frozenset(index for at, index in order if not is_read(at))


def _next_order(adapter: PyDatasetAdapter) -> list[int]:
    """Return the order that the adapter will draw next; empty if the dataset has no end."""
    length = adapter.py_dataset.num_batches
    order = list(range(length or 0))
    if adapter.shuffle:
        # The adapter shuffles with Python's global generator. A copy leaves its state as it is.
        generator = random.Random()
        generator.setstate(random.getstate())
        generator.shuffle(order)
    return order


def _use_dataset(adapter: PyDatasetAdapter, dataset: keras.utils.PyDataset) -> None:
    adapter.py_dataset = dataset
    if adapter.enqueuer:
        adapter.enqueuer.py_dataset = dataset


def _skip_arrays(adapter: ArrayDataAdapter, count: int) -> Iterator[Any]:
    """Iterate over arrays without slicing the first batches."""
    skipping = True

    def batch(sliceable: Any, indices: Any = None) -> Any:
        return None if skipping else sliceable.convert_to_jax_compatible(sliceable[indices])

    inputs = array_slicing.convert_to_sliceable(adapter._inputs, "jax")
    # Keras's generator calls `batch` when the batch is requested, so `skipping` is up to date.
    for number, sliced in enumerate(adapter._get_iterator(batch, inputs), start=1):
        skipping = number < count
        yield sliced


class _PartlyRead(keras.utils.PyDataset):
    """A dataset some of whose batches are not read in its first epoch."""

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


class _ReadByOthers(_PartlyRead):
    """A dataset some of whose batches another process reads; here they hold zeros."""

    def __init__(self, dataset: keras.utils.PyDataset) -> None:
        super().__init__(dataset, ())
        self._zeros = keras.tree.map_structure(np.zeros_like, dataset[0])

    def __getitem__(self, index: int) -> Any:
        return self._zeros if index in self.unread else self.dataset[index]

    def on_epoch_end(self) -> None:
        self.dataset.on_epoch_end()
