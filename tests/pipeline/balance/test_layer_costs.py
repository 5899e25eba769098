import jax
import keras
from convoy import timing
from convoy.pipeline.balance import layer_costs
from convoy.pipeline.balance.layer_costs import input_shapes, layer_sizes, measure_layers
from convoy.pipeline.stages import calls_of
from keras import layers


def test_a_busy_second_does_not_decide(monkeypatch):
    """Whatever runs first is slow for a while, as on a machine that others use."""
    runs = []

    def program(name, seconds):
        def run():
            runs.append(name)
            now.append(now[-1] + (100.0 if len(runs) < 8 else seconds))
            return ()

        return run, list

    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[-1])
    programs = [program(name, seconds) for name, seconds in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
    assert layer_costs.time_in_turns(programs) == [1.0, 2.0, 3.0]


def test_equal_layers_are_measured_once():
    model = keras.Sequential([keras.Input((6,)), *(layers.Dense(6) for _ in range(4))])
    sizes = layer_sizes(model, calls_of(model), 8)
    seconds = measure_layers(model, sizes, jax.devices()[0])
    # The first has no gradient for its input; the last sends nothing on but the model's output.
    assert seconds[1] == seconds[2] == seconds[3]
    assert {(c.weights, c.statistics, c.activations, c.live) for c in sizes} == {
        (4 * (36 + 6), 0, 4 * 8 * 6, 4 * 8 * 6)
    }


def test_what_is_live_counts_skips_but_not_the_inputs():
    inputs = keras.Input((2,))
    one = layers.Dense(2)(inputs)
    two = layers.Dense(4)(one)
    model = keras.Model(inputs, layers.Concatenate()([two, one, inputs]))
    sizes = layer_sizes(model, calls_of(model), 3)
    assert [layer.live for layer in sizes] == [4 * 3 * n for n in (2, 6, 8)]


def test_an_input_of_numbers_in_64_bits_is_timed_in_those_of_the_device():
    inputs = keras.Input((), dtype="int64")
    shapes = input_shapes(keras.Model(inputs, layers.Embedding(4, 2)(inputs)), 8)
    assert [(shape.shape, shape.dtype) for shape in shapes.values()] == [((8,), "int32")]
