import convoy
import keras
import numpy as np
import pytest

pytestmark = pytest.mark.integration

X, Y = np.zeros((40, 3), "float32"), np.zeros((40, 2), "float32")


def fit(steps=1, fit=None, **strategy):
    with convoy.Strategy(**strategy).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse", steps_per_execution=steps)
    return model.fit(X, Y, verbose=0, **({"batch_size": 2} | (fit or {})))


def test_a_device_call_must_not_end_inside_of_a_weight_update():
    with pytest.raises(ValueError, match=r"=10 is not a multiple of .*=4.* Pass 8, or 'auto'"):
        fit(10, gradient_accumulation=4)


def test_an_epoch_must_not_end_inside_of_a_weight_update():
    with pytest.raises(ValueError, match=r"steps_per_epoch=6 is not a multiple.* Pass 8"):
        fit(gradient_accumulation=4, fit={"steps_per_epoch": 6})


def test_data_for_less_than_a_weight_update_is_refused():
    message = r"40 samples, fewer .* batch_size 2 x 4 replicas x gradient_accumulation=8 = 64"
    with pytest.raises(ValueError, match=message):
        fit(devices=4, gradient_accumulation=8)


def test_a_global_batch_that_does_not_divide_is_refused():
    message = (
        r"batch_size=10 .* 2 replicas x gradient_accumulation=4 = 8 micro-batches.* for example 16"
    )
    with pytest.raises(ValueError, match=message):
        fit(devices=2, gradient_accumulation=4, batch="global", fit={"batch_size": 10})


def test_an_automatic_pace_keeps_weight_updates_whole():
    assert np.isfinite(fit("auto", gradient_accumulation=4).history["loss"]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gradient_accumulation": 0}, "gradient_accumulation=0 is not a number"),
        ({"accumulation_dtype": "int8"}, "'int8' cannot hold gradients"),
        ({"reduction": "max"}, "reduction='max' is unknown. Pass 'mean' or 'sum'"),
        ({"batch": "all"}, "batch='all' is unknown. Pass 'replica'"),
        ({"reduction_bucket": -1}, "reduction_bucket=-1 is not a number of bytes"),
        (
            {"devices": 4, "batch_norm_group": 3},
            "3 does not divide 4 replicas. Pass one of 1, 2, 4",
        ),
        ({"devices": 2, "replicas": 3}, "3 replicas do not fit on 2 devices. Pass at most"),
        ({"replicas": 0}, "replicas=0 is not a number of replicas"),
        ({"activation_checkpointing": -5}, "activation_checkpointing=-5 is not a number of bytes"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        convoy.Strategy(**arguments)


def test_devices_that_are_left_over_are_named():
    with pytest.warns(UserWarning, match="replicas=2 leaves 1 of 3 devices unused: cpu:2"):
        strategy = convoy.Strategy(devices=3, replicas=2)
    assert strategy.replicas == 2


@pytest.mark.parametrize(
    ("elements", "replicas", "accumulation"),
    [(4, 1, 1), (4, 2, 1), (4, 1, 2), (4, 2, 2), (8, 2, 2)],
)
def test_gradients_are_those_of_the_mean_whatever_the_split(elements, replicas, accumulation):
    """A weight of 1 becomes 3 after one update whose mean gradient is -2 (learning rate 1)."""

    def loss(y, y_pred):
        return -2.0 * y_pred

    with convoy.Strategy(devices=replicas, gradient_accumulation=accumulation).scope():
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
        )
        model.compile(keras.optimizers.SGD(1.0), loss)
    data = np.ones((elements, 1), "float32")
    model.fit(data, data, batch_size=elements // (replicas * accumulation), verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], [[3.0]])


def weight_after(replicas, over_replicas, accumulation, over_micro_batches):
    """Return a weight after one update: learning rate 0.5, the gradient of each loss is 1.5."""
    with convoy.Strategy(devices=replicas, reduction=over_replicas).scope():
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        model.compile(keras.optimizers.SGD(0.5), lambda y, y_pred: y_pred + y)
    model.set_gradient_accumulation(accumulation, reduction=over_micro_batches)
    x = np.full((2 * replicas * accumulation, 1), 1.5, "float32")
    model.fit(x, np.ones_like(x), batch_size=2, verbose=0)
    return float(model.get_weights()[0][0, 0])


@pytest.mark.parametrize(
    ("over_replicas", "over_micro_batches", "times"),
    [("sum", "sum", 2 * 4), ("sum", "mean", 2), ("mean", "sum", 4), ("mean", "mean", 1)],
)
def test_replicas_and_micro_batches_are_reduced_each_in_its_way(
    over_replicas, over_micro_batches, times
):
    assert weight_after(2, over_replicas, 4, over_micro_batches) == -0.5 * 1.5 * times
    assert weight_after(2, over_replicas, 1, over_micro_batches) == (
        -0.5 * 1.5 * (2 if over_replicas == "sum" else 1)
    )


def test_metrics_are_the_mean_over_all_replicas():
    """Replica 0 sees the targets 1 and 3, replica 1 sees 2 and 4."""
    with convoy.Strategy(devices=2).scope():
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")]
        )
        model.compile(keras.optimizers.SGD(0.0), "mae", metrics=["mae"], steps_per_execution=2)
    x, y = np.zeros((4, 1), "float32"), np.array([[1], [2], [3], [4]], "float32")
    history = model.fit(x, y, batch_size=1, shuffle=False, verbose=0).history
    assert (history["loss"], history["mae"]) == ([2.5], [2.5])
