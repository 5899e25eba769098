import keras
import numpy as np
import pytest
from convoy import ipu


def compiled(metrics):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mae", metrics=metrics)
    return model


@pytest.mark.parametrize(
    ("method", "expected"), [("NONE", 2.5), ("LIST", [2, 3]), ("SUM", 5), ("MEAN", 2.5)]
)
def test_two_replicas_with_labels_one_to_four(configure, method, expected):
    """Replica 0 sees 1 and 3, replica 1 sees 2 and 4; the model says 0."""
    configure(2)
    x, y = np.zeros((4, 1), "float32"), np.arange(1, 5, dtype="float32")[:, None]
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = compiled([keras.metrics.MeanAbsoluteError(name="error")])
        model.set_replication_options(method)
        results = model.evaluate(x, y, batch_size=1, verbose=0, return_dict=True)
    assert set(results) == {"loss", "error"}
    for value in results.values():
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_trains_and_shows_lists(configure, capsys):
    configure(2)
    x, y = np.zeros((4, 1), "float32"), np.arange(1, 5, dtype="float32")[:, None]
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = compiled(["mae"])
        model.set_replication_options(ipu.keras.ReplicatedMetricReductionMethod.LIST)
        history = model.fit(x, y, batch_size=2, shuffle=False, verbose=2).history
    np.testing.assert_allclose(history["mae"], [[1.5, 3.5]], rtol=1e-6)
    # The bar has room for one number.
    assert "mae: 2.5000" in capsys.readouterr().out


def test_refuses_words_that_mean_several_metrics(configure):
    configure(2)
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = compiled(["accuracy"])
        with pytest.raises(ValueError, match="'accuracy' is a name for several"):
            model.set_replication_options("SUM")
        with pytest.raises(ValueError, match="MEDIAN"):
            model.set_replication_options("MEDIAN")
