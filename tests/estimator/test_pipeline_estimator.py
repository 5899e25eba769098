import convoy
import keras
import numpy as np
import pytest
from convoy.estimator import (
    ArrayInput,
    ModeKeys,
    PipelineEstimator,
    PipelineEstimatorSpec,
    RunConfig,
)

pytestmark = pytest.mark.integration


def first(features, labels=None):
    x = keras.layers.Dense(3, activation="tanh", kernel_initializer="ones")(features)
    return x if labels is None else (x, labels)


def second(x, labels):
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(x)
    return keras.ops.mean(keras.ops.square(outputs - labels))


def outputs(x, labels=None):
    result = keras.layers.Dense(1, kernel_initializer="ones")(x)
    return {"y": result} if labels is None else (result, labels)


def metrics(found, labels):
    return {"loss": np.mean((found - labels) ** 2), "worst": np.abs(found - labels).max()}


def in_stages(mode):
    return PipelineEstimatorSpec(
        mode,
        [first, second if mode == ModeKeys.TRAIN else outputs],
        keras.optimizers.SGD(0.1, momentum=0.9),
        gradient_accumulation=2,
        host_metrics=metrics,
    )


def test_trains_evaluates_and_predicts_as_stock_keras(tmp_path, data, batches, stock):
    config = RunConfig(strategy=convoy.Strategy(devices=2), steps_per_execution=4)
    estimator = PipelineEstimator(in_stages, tmp_path, config)
    estimator.train(batches, steps=8)
    stock.train(4, 4).check(estimator)
    loss, _ = stock.model.evaluate(*data, verbose=0)
    predicted = stock.model.predict(data[0], verbose=0)
    results = estimator.evaluate(lambda: ArrayInput(*data, batch_size=2))
    worst = np.abs(predicted - data[1]).max()
    assert results == pytest.approx({"loss": loss, "worst": worst, "global_step": 8}, rel=1e-5)
    found = [sample["y"] for sample in estimator.predict(lambda: data[0])]
    np.testing.assert_allclose(found, predicted, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="3 steps are not a multiple of the 2 micro-batches"):
        estimator.train(batches, steps=3)


def test_refuses_functions_that_do_not_fit(tmp_path, batches):
    with pytest.raises(ValueError, match="has an argument 'features'"):
        PipelineEstimator(lambda features, mode: None, tmp_path)
    with pytest.raises(TypeError, match="not a PipelineEstimatorSpec"):
        PipelineEstimator(lambda mode: 3, tmp_path).train(batches, steps=1)
