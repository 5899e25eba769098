import gc
import json
import weakref

import jax
import keras
import numpy as np
import pytest
from convoy import ipu
from convoy.ipu.ops.pipelining_ops import (
    OptimizerFunctionOutput,
    pipeline,
)
from tests.ipu.pipelining.lines import (
    RATE,
    START,
    Infeed,
    Line,
    X,
    computed,
    double,
    identity,
)

pytestmark = pytest.mark.integration

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations():
    """Hear of everything that is compiled."""
    found = []

    def listen(event, *_, **__):
        if event == COMPILED:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def with_layers_inside():
    """Return stages that make their layers, and an optimizer function."""

    def first(x, y):
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        return layer(x), y

    def second(product, y):
        return keras.ops.mean(product) + y

    def optimizer_function(loss):
        return OptimizerFunctionOutput(keras.optimizers.SGD(RATE, momentum=0.5), loss)

    return [first, second], optimizer_function


def test_goes_on_with_the_same_weights_without_compiling_again(configure, compilations):
    configure(2)
    line = Line()
    stages, optimizer_function = with_layers_inside()
    losses = []
    for time in range(3):
        if time == 2:
            assert compilations
            del compilations[:]
        line.train(
            computational_stages=stages, optimizer_function=optimizer_function, outfeed_loss=True
        )
        losses.append(line.outfeed.dequeue()[0])
    step = 4 * RATE * X
    assert losses == pytest.approx([X, X * (1 - step), X * (1 - step - 1.5 * step)])
    assert not compilations
    pipeline(stages, 4, infeed_queue=line.infeed, outfeed_queue=line.outfeed)
    assert line.outfeed.dequeue()[0] == pytest.approx(X * (1 - step - 1.5 * step - 1.75 * step))


@pytest.mark.parametrize("run", ["compile", "strategy"])
def test_a_function_that_makes_stages_goes_on_too(configure, compilations, run):
    configure(2)
    line = Line()

    def my_net(two):
        (first, second), optimizer_function = with_layers_inside()
        return line.train(
            computational_stages=[lambda one, x, y: first(one * x, y), second],
            optimizer_function=optimizer_function,
            inputs=[two / 2],
            outfeed_loss=True,
        )

    losses = []
    for time in range(3):
        if time == 2:
            assert compilations
            del compilations[:]
        if run == "strategy":
            found = ipu.ipu_strategy.IPUStrategy().run(my_net, [np.float32(2)])
        else:
            with ipu.scopes.ipu_scope("/device:IPU:0"):
                found = ipu.ipu_compiler.compile(my_net, [np.float32(2)])
        assert found is None
        losses.append(line.outfeed.dequeue()[0])
    step = 4 * RATE * X
    assert losses == pytest.approx([X, X * (1 - step), X * (1 - step - 1.5 * step)])
    assert not compilations


def test_other_shapes_go_on_with_the_same_weights(configure):
    configure(2)
    stages, optimizer_function = with_layers_inside()
    line = Line()
    settings = {"computational_stages": stages, "optimizer_function": optimizer_function}
    line.train(**settings)
    wide = Infeed([(np.full((2, 1), X, "float32"), np.float32(0))] * 2)
    found = computed(stages, infeed_queue=wide)
    assert found == pytest.approx([X * (START - 4 * RATE * X)] * 2)
    wide = Infeed([(np.full((1, 2), X, "float32"), np.float32(0))] * 2)
    with pytest.raises(ValueError, match=r"weights of the shapes \[\(2, 1\)\], but \[\(1, 1\)\]"):
        computed(stages, infeed_queue=wide)


def test_says_that_stages_made_anew_have_new_weights(configure, caplog):
    configure(2)
    line = Line()
    for _ in range(2):
        stages, _ = with_layers_inside()
        pipeline(stages, 2, infeed_queue=line.infeed, outfeed_queue=line.outfeed)
        Line().train()  # a method is another for every object
    assert caplog.text.count("created again, with new weights") == 1


def test_a_learning_rate_is_set_on_the_optimizer(configure):
    configure(2)
    line = Line()
    line.train()
    line.optimizer.learning_rate = 0.1
    line.train()
    assert line.weight == pytest.approx(START - 4 * (RATE + 0.1) * X)


def test_writes_a_report_if_one_is_asked_for(configure, tmp_path, monkeypatch):
    words = {"autoReport.all": "true", "autoReport.directory": str(tmp_path)}
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps(words))
    configure(2)
    computed([double, identity])
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("tf_report__")


def test_another_optimizer_takes_the_place_of_the_first(configure):
    configure(2)
    line = Line()
    line.train()
    line.optimizer = keras.optimizers.SGD(10 * RATE)
    line.train(
        optimizer_function=lambda loss: OptimizerFunctionOutput(keras.optimizers.SGD(0.0), loss)
    )
    assert line.weight == pytest.approx(START - 4 * RATE * X)


def test_a_network_goes_with_its_functions(configure):
    configure(2)
    stages, _ = with_layers_inside()
    line = Line()
    pipeline(stages, 2, infeed_queue=line.infeed, outfeed_queue=line.outfeed)
    (kept,) = vars(stages[0])["_convoy_pipelines"].values()
    kept = weakref.ref(kept)
    del stages
    gc.collect()
    assert kept() is None
