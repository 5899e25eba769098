import convoy
import jax
import keras
import numpy as np
import pytest
from convoy.engine.data.placement import Placement
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.out_of_memory import DeviceMemoryError, explain, memory_advice
from keras import layers

CONFIG = ExecutionConfig(Placement(None))


class Enormous(layers.Layer):
    """Sorts a tensor that fits into no memory: 4 TiB for each sample."""

    def call(self, inputs):
        numbers = keras.ops.arange(1 << 20, dtype="float32")
        # All rows differ, and all of them are read: XLA cannot make it smaller.
        table = numbers[None, :, None] * numbers[None, None, :]
        table = keras.ops.sin(table + inputs[:, :1, None])
        return keras.ops.max(keras.ops.sort(table, axis=-1)[:, :, 5:7], axis=1)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_the_error_of_a_device_is_one_line_with_what_to_change(method):
    with convoy.Strategy(1).scope():
        model = keras.Sequential([keras.Input((2,)), Enormous(), layers.Dense(1)], name="large")
        model.compile("sgd", "mse")
    x = np.zeros((32, 2), "float32")
    data = (x,) if method == "predict" else (x, x[:, :1])
    with pytest.raises(DeviceMemoryError) as caught:
        getattr(model, method)(*data, batch_size=32, verbose=0)
    message = str(caught.value)
    assert message.startswith(f"A device ran out of memory in {method}() of 'large', where ")
    assert "TiB were requested. Use one of these: a smaller batch_size" in message
    assert "\n" not in message
    assert caught.value.__cause__ is None
    assert ("gradient_accumulation" in message) == (method == "fit")


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("Out of memory while trying to allocate 34359738368 bytes.", "32 GiB"),
        ("Out of memory allocating 1048576 bytes.", "1 MiB"),
        ("Attempting to allocate 2.50G. That was not possible. There are 1.20G free.", "2.5 GiB"),
    ],
)
def test_the_size_is_read_from_the_message_of_xla(message, size):
    error = jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {message}")
    assert f", where {size} were requested" in str(explain(error, "fit", "net", CONFIG))


def test_a_message_without_a_size_is_explained_as_well():
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Failed to load the program.")
    explained = explain(error, "evaluate", "net", CONFIG)
    assert isinstance(explained, DeviceMemoryError)
    assert "in evaluate() of 'net'. Use one of these" in str(explained)


def test_other_errors_pass():
    error = jax.errors.JaxRuntimeError("INTERNAL: something else")
    assert explain(error, "fit", "net", CONFIG) is None


def test_only_changes_that_are_left_are_advised():
    replicas = convoy.Strategy(2, activation_checkpointing="auto").execution_config
    advice = " ".join(memory_advice("fit", replicas))
    assert "shard='weights'" in advice
    assert "activation_checkpointing" not in advice
    sharded = convoy.Strategy(2, shard="weights").execution_config
    assert "shard" not in " ".join(memory_advice("fit", sharded))
    assert memory_advice("predict", CONFIG)[0] == "a smaller batch_size"
