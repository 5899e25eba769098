import gc
import json
import weakref

import jax
import keras
import numpy as np
import pytest
from convoy import ipu
from convoy.ipu.errors import FailedPreconditionError
from convoy.ipu.ops.pipelining_ops import (
    OptimizerFunctionOutput,
    PipelineSchedule,
    PipelineStageOptions,
    RecomputationMode,
    pipeline,
    recomputation_checkpoint,
)
from convoy.ipu.pipelining import network

Infeed = ipu.ipu_infeed_queue.IPUInfeedQueue
Outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue
Mode = ipu.ipu_outfeed_queue.IPUOutfeedMode
X, RATE, START = 1.5, 0.5, 1.0
COMPILED = "/jax/core/compile/backend_compile_duration"


def numbers(count=64):
    return Infeed([np.float32(number) for number in range(count)])


def double(x):
    return 2 * x


def add_one(x):
    return x + 1


def identity(x):
    return x


def computed(stages, count=2, **settings):
    """Run stages on the numbers from 0; return what came out."""
    outfeed = Outfeed()
    given = {"infeed_queue": numbers(), "outfeed_queue": outfeed}
    pipeline(stages, count, **given | settings)
    return outfeed.dequeue()


class Line:
    """L = w x + y, with the product in one stage and the sum in another."""

    def __init__(self, optimizer=None, y=0.0):
        self.layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        self.optimizer = optimizer or keras.optimizers.SGD(RATE)
        self.infeed = Infeed([(np.full((1, 1), X, "float32"), np.float32(y))] * 64)
        self.outfeed = Outfeed()

    def first(self, x, y):
        return self.layer(x), y

    def second(self, product, y):
        return keras.ops.mean(product) + y

    def optimizer_function(self, loss, *others):
        return OptimizerFunctionOutput(self.optimizer, loss)

    def train(self, count=4, **settings):
        given = {
            "computational_stages": [self.first, self.second],
            "infeed_queue": self.infeed,
            "outfeed_queue": self.outfeed,
            "optimizer_function": self.optimizer_function,
        }
        return pipeline(gradient_accumulation_count=count, **given | settings)

    @property
    def weight(self):
        return float(np.asarray(self.layer.kernel).squeeze())


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


# What stages are given, and what comes out ----------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "count"), [("Grouped", 2), ("Interleaved", 2), ("Sequential", 3)]
)
def test_computes_micro_batches_in_their_order(configure, schedule, count):
    configure(2)
    found = computed(
        [double, add_one],
        count,
        repeat_count=6 // count,
        pipeline_schedule=PipelineSchedule[schedule],
    )
    assert found.tolist() == [1, 3, 5, 7, 9, 11]


def test_stages_that_share_a_device_leave_room_for_fewer_micro_batches(configure):
    configure(2)
    settings = {"device_mapping": [0, 1, 0], "pipeline_schedule": PipelineSchedule.Interleaved}
    assert computed([double, identity, add_one], 1, **settings).tolist() == [1]
    with pytest.raises(FailedPreconditionError, match="gradient_accumulation_count=1 is not a mul"):
        computed([double, add_one], 1)


def test_inputs_come_before_the_element_of_the_infeed(configure):
    configure(2)

    def first(a, b, x, label):
        assert x.shape == (2,)
        return a * x + b, label

    pairs = Infeed([(np.full(2, n, "float32"), np.int32(n)) for n in range(4)])
    values, labels = computed(
        [first, lambda x, label: (x, label)], 4, inputs=[10, 0.5], infeed_queue=pairs
    )
    assert values.tolist() == [[0.5] * 2, [10.5] * 2, [20.5] * 2, [30.5] * 2]
    assert labels.tolist() == [0, 1, 2, 3]
    assert labels.dtype == np.int32


def test_inputs_alone_are_the_same_for_every_micro_batch(configure):
    configure(2)
    found = computed([double, identity], inputs=np.float32(4), infeed_queue=None)
    assert found.tolist() == [8, 8]


@pytest.mark.parametrize("wrap", [dict, lambda element: (element,)])
def test_a_dict_is_handed_over_by_name(configure, wrap):
    configure(2)
    elements = [{"image": np.float32(n), "label": np.int32(-n)} for n in range(2)]

    def first(scale, *, label, image):
        return {"scaled": scale * image, "label": label}

    def second(label, scaled):
        return {"y": scaled + 1, "label": label, "is_large": scaled > 5}

    found = computed(
        [first, second], inputs=[10.0], infeed_queue=Infeed([wrap(e) for e in elements])
    )
    assert found["y"].tolist() == [1, 11]
    assert found["label"].tolist() == [0, -1]
    assert found["is_large"].tolist() == [False, True]


def test_a_stage_may_compute_nothing(configure):
    configure(4)
    found = computed([identity, double, identity, lambda x: (x, 7.0)], 4)
    assert [part.tolist() for part in found] == [[0, 2, 4, 6], [7] * 4]


def test_functions_of_a_concurrent_stage_are_given_the_same(configure):
    configure(4)
    stages = [double, [add_one, identity], lambda more, same: (more, same)]
    interleaved = PipelineSchedule.Interleaved
    found = computed(stages, 3, device_mapping=[0, [1, 2], 3], pipeline_schedule=interleaved)
    assert [part.tolist() for part in found] == [[1, 3, 5], [0, 2, 4]]
    found = computed(stages, 3, device_mapping=[0, 2, 0])
    assert [part.tolist() for part in found] == [[1, 3, 5], [0, 2, 4]]


def test_more_executions_than_a_device_call_takes(configure, monkeypatch):
    configure(2)
    monkeypatch.setattr(network, "DEVICE_CALL", 4 * 12)
    assert computed([double, identity], 2, repeat_count=5).tolist() == list(range(0, 20, 2))
    line = Line()
    line.train(repeat_count=1)
    line.train(repeat_count=3, outfeed_loss=False)
    (losses,) = line.outfeed.dequeue()
    assert losses[::4] == pytest.approx([X * (START - n * 4 * RATE * X) for n in range(4)])


# Training -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "factor"), [("sum", 4), ("MEAN", 1), ("running_mean", 1)])
def test_gradients_of_a_line(configure, method, factor):
    configure(2)
    line = Line(y=2.0)
    assert line.train(repeat_count=2, reduction_method=method) is None
    step = factor * RATE * X
    assert line.weight == pytest.approx(START - 2 * step)
    (losses,) = line.outfeed.dequeue()
    expected = [X * START + 2] * 4 + [X * (START - step) + 2] * 4
    assert losses.tolist() == pytest.approx(expected)
    assert line.optimizer.iterations == 2


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("schedule", PipelineSchedule)
def test_trains_as_stock_keras_does(configure, rng, schedule, recomputes):
    configure(4, lambda config: setattr(config, "allow_recompute", recomputes))
    x = rng.standard_normal((4 * 6 * 2, 5)).astype("float32")
    y = rng.integers(0, 3, len(x)).astype("int32")
    layers = [keras.layers.Dense(7, "relu"), keras.layers.Dense(6, "tanh"), keras.layers.Dense(3)]
    stock = keras.Sequential([keras.Input((5,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    before = stock.get_weights()
    stock.compile(keras.optimizers.Adam(0.01), loss)
    stock.fit(x, y, batch_size=24, shuffle=False, verbose=0)
    expected = stock.get_weights()
    stock.set_weights(before)
    outfeed = Outfeed()
    pipeline(
        [
            lambda x, labels: (layers[0](x), labels),
            lambda x, labels: (layers[1](x), labels),
            lambda x, labels: (loss(labels, layers[2](x)), layers[2](x)),
        ],
        6,
        repeat_count=2,
        infeed_queue=Infeed([(x[i : i + 4], y[i : i + 4]) for i in range(0, len(x), 4)]),
        outfeed_queue=outfeed,
        optimizer_function=lambda loss, _: OptimizerFunctionOutput(
            keras.optimizers.Adam(0.01), loss
        ),
        pipeline_schedule=schedule,
        reduction_method="mean",
    )
    for own, wanted in zip(stock.get_weights(), expected, strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=1e-6)
    losses, logits = outfeed.dequeue()
    assert losses.shape == (12,)
    assert logits.shape == (12, 4, 3)


def test_a_loss_of_several_numbers_counts_as_their_sum(configure):
    configure(2)
    line = Line()
    line.infeed = Infeed([(np.full((3, 1), X, "float32"), np.float32(0))] * 4)
    line.train(computational_stages=[line.first, lambda product, y: product])
    assert line.weight == pytest.approx(START - 4 * 3 * RATE * X)


def test_more_micro_batches_by_batch_serialization(configure):
    configure(1)
    line = Line()
    line.train(3, batch_serialization_iterations=2)
    assert line.weight == pytest.approx(START - 6 * RATE * X)


def test_a_count_may_be_an_array(configure):
    configure(2)
    line = Line()
    line.train(np.int32(4))
    assert line.weight == pytest.approx(START - 4 * RATE * X)


# The outfeed ----------------------------------------------------------------------------------


def test_an_outfeed_that_keeps_the_last(configure):
    configure(2)
    outfeed = Outfeed(Mode.LAST)
    pipeline([double, add_one], 4, infeed_queue=numbers(), outfeed_queue=outfeed)
    assert outfeed.dequeue() == 7
    line = Line()
    line.outfeed = outfeed
    line.train(repeat_count=2)
    assert outfeed.dequeue() == [X * (START - 4 * RATE * X)]


def test_accumulated_outputs_are_one_for_each_execution(configure):
    configure(2)
    (found,) = computed([double, identity], repeat_count=2, accumulate_outfeed=True)
    assert found.tolist() == [2, 10]
    line = Line()
    line.train(repeat_count=2, accumulate_outfeed=True, accumulate_outfeed_dtype="float16")
    (losses,) = line.outfeed.dequeue()
    assert losses.tolist() == [4 * X, 4 * X * (START - 4 * RATE * X)]
    assert losses.dtype == np.float16
    line.train(
        accumulate_outfeed=True, accumulate_outfeed_dtype=lambda tensor: "int32", outfeed_loss=True
    )
    assert line.outfeed.dequeue().dtype == np.int32


def test_the_loss_alone_or_a_choice_of_outputs(configure):
    configure(2)
    line = Line()

    def second(product, y):
        return keras.ops.mean(product) + y, product, y

    stages = [line.first, second]
    line.train(computational_stages=stages, outfeed_loss=True)
    assert line.outfeed.dequeue().tolist() == [X * START] * 4
    line.train(computational_stages=stages, outfeed_mask=[True, False, False])
    products, ys = line.outfeed.dequeue()
    assert products.shape == (4, 1, 1)
    assert ys.tolist() == [0] * 4
    line.train(computational_stages=stages, outfeed_mask=[True] * 3, outfeed_queue=None)
    assert line.weight == pytest.approx(START - 3 * 4 * RATE * X)
    with pytest.raises(
        ValueError, match="outfeed_mask has 1 entries, but the last stage returns 3"
    ):
        line.train(computational_stages=stages, outfeed_mask=[True])


# Devices --------------------------------------------------------------------------------------


def test_stages_are_where_the_mapping_says(configure):
    configure(2)
    line = Line()
    line.train(device_mapping=(1, 0))
    assert line.layer.kernel.value.devices() == {jax.devices()[1]}
    line.train(device_mapping=[1, 1], pipeline_schedule=PipelineSchedule.Sequential)
    assert line.layer.kernel.value.devices() == {jax.devices()[1]}
    assert line.weight == pytest.approx(START - 2 * 4 * RATE * X)


def test_every_replica_takes_its_own_element(configure):
    configure(4)
    assert computed([double, add_one]).tolist() == [[1, 3], [5, 7]]
    assert computed([double, identity, add_one], 3).tolist() == [1, 3, 5]
    (found,) = computed([double, add_one], accumulate_outfeed=True)
    assert found.tolist() == [[6, 10]]


@pytest.mark.parametrize(("scope", "factor"), [(True, 2), (False, 1)])
def test_gradients_of_replicas_are_put_together(configure, scope, factor):
    configure(4)
    optimizer = keras.optimizers.SGD(RATE)
    if scope:
        line = Line(optimizer)
        with ipu.ipu_strategy.IPUStrategy().scope():
            line.train()
    else:
        line = Line(ipu.optimizers.CrossReplicaOptimizer(optimizer))
        line.train()
    assert line.weight == pytest.approx(START - factor * 4 * RATE * X)
    assert np.shape(line.outfeed.dequeue()) == (1, 4, 2)


def test_gradients_of_replicas_must_come_together(configure):
    configure(4)
    with pytest.raises(ValueError, match=r"trained on 2 replicas, .*\.CrossReplicaOptimizer"):
        Line().train()


def test_says_how_many_devices_are_missing(configure):
    configure(1)
    with pytest.raises(ValueError, match="devices 0 to 1, but 1 are configured"):
        computed([double, identity])


# Calling it again -----------------------------------------------------------------------------


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
    assert caplog.text.count("made anew, and with them their weights") == 1


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


# What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"computational_stages": double}, TypeError, "function, not a list"),
        ({"computational_stages": [double]}, ValueError, "two stages or more, but received 1"),
        ({"computational_stages": [double, 3]}, TypeError, "Stage 1 has 3 in it"),
        ({"computational_stages": [double, [[identity]]]}, TypeError, "Stage 1 has .* not a fun"),
        ({"computational_stages": [double, []]}, ValueError, "Stage 1 is an empty list"),
        ({"gradient_accumulation_count": None}, ValueError, "count was not passed"),
        ({"gradient_accumulation_count": -1}, ValueError, "count=-1 is out of range"),
        ({"gradient_accumulation_count": 2**31}, ValueError, "is out of range"),
        ({"gradient_accumulation_count": 1.5}, ValueError, "count=1.5 is not a number"),
        ({"repeat_count": 0}, ValueError, "repeat_count=0 is out of range"),
        ({"infeed_queue": [1.0]}, TypeError, "infeed_queue is list, not an IPUInfeedQueue"),
        ({"outfeed_queue": []}, TypeError, "outfeed_queue is list, not an IPUOutfeedQueue"),
        ({"outfeed_queue": None}, ValueError, "returns 1 outputs, but there is no queue"),
        ({"infeed_queue": None}, ValueError, "The first stage is given nothing"),
        ({"optimizer_function": 3}, TypeError, "optimizer_function=3 is not a function"),
        ({"device_mapping": 0}, TypeError, "device_mapping=0 is not a list"),
        ({"device_mapping": [0]}, ValueError, "1 entries for 2 stages"),
        ({"device_mapping": [0, [1, 2]]}, ValueError, "stage 1, which has 1 functions"),
        ({"device_mapping": [0, "1"]}, ValueError, "is not a list of ints"),
        ({"pipeline_schedule": "Grouped"}, TypeError, "is not a PipelineSchedule"),
        ({"recomputation_mode": 1}, TypeError, "is not a RecomputationMode"),
        (
            {"forward_propagation_stages_poplar_options": [PipelineStageOptions()]},
            ValueError,
            "1 entries, but there are 2 stages",
        ),
        (
            {"backward_propagation_stages_poplar_options": [1, 2]},
            TypeError,
            "not a list of PipelineStageOptions",
        ),
        ({"weight_update_poplar_options": {}}, TypeError, "is not a PipelineStageOptions"),
        ({"continuous_weight_updates": True}, NotImplementedError, "Leave it out"),
        (
            {
                "replicated_optimizer_state_sharding": True,
                "offload_weight_update_variables": False,
            },
            ValueError,
            "needs offload_weight_update_variables",
        ),
        ({"outfeed_loss": True}, ValueError, "outfeed_loss needs an optimizer_function"),
        ({"outfeed_mask": [False]}, ValueError, "outfeed_mask needs an optimizer_function"),
        (
            {"outfeed_loss": True, "outfeed_mask": [False]},
            ValueError,
            "Both outfeed_loss and outfeed_mask",
        ),
        (
            {"accumulate_outfeed": True, "outfeed_queue": Outfeed(Mode.LAST)},
            ValueError,
            "a queue that keeps ALL",
        ),
        (
            {"accumulate_outfeed": True, "outfeed_queue": None},
            ValueError,
            "accumulate_outfeed needs an outfeed_queue",
        ),
        ({"gradient_accumulation_count": 3}, FailedPreconditionError, "count=3 is not a multiple"),
        (
            {"batch_serialization_iterations": 2, "pipeline_schedule": PipelineSchedule.Grouped},
            NotImplementedError,
            "needs the Sequential schedule, but it is Grouped",
        ),
        (
            {"batch_serialization_iterations": 2, "device_mapping": [0, 1]},
            NotImplementedError,
            "needs all stages on one device",
        ),
    ],
)
def test_refuses_what_does_not_fit(configure, arguments, error, match):
    configure(2)
    given = {
        "computational_stages": [double, identity],
        "gradient_accumulation_count": 4,
        "infeed_queue": numbers(),
        "outfeed_queue": Outfeed(),
    }
    with pytest.raises(error, match=match):
        pipeline(**given | arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"count": 6}, FailedPreconditionError, "gradient_accumulation_count=6 is not a multiple"),
        (
            {"device_mapping": [0, 0], "pipeline_schedule": PipelineSchedule.Interleaved},
            NotImplementedError,
            "Use Grouped or Sequential",
        ),
        (
            {
                "recomputation_mode": RecomputationMode.RecomputeThenBackpropagate,
                "pipeline_schedule": PipelineSchedule.Sequential,
            },
            NotImplementedError,
            "does not recompute by",
        ),
        ({"reduction_method": "max"}, ValueError, "'max' is not a GradientAccumulationReduction"),
        (
            {"batch_serialization_iterations": 2, "reduction_method": "mean"},
            ValueError,
            "needs reduction_method SUM, but it is MEAN",
        ),
        ({"optimizer_function": lambda loss: loss}, TypeError, "not an OptimizerFunctionOutput"),
        (
            {"optimizer_function": lambda _: OptimizerFunctionOutput(keras.optimizers.SGD(), 1.0)},
            ValueError,
            "The loss is 1.0, which no stage computes",
        ),
    ],
)
def test_refuses_to_train_what_does_not_fit(configure, arguments, error, match):
    configure(2, lambda config: setattr(config, "allow_recompute", True))
    with pytest.raises(error, match=match):
        Line().train(**arguments)


@pytest.mark.parametrize(
    ("wrap", "match"),
    [
        (
            lambda opt: ipu.optimizers.GradientAccumulationOptimizerV2(opt, 2),
            "accumulates gradients, and so does the pipeline",
        ),
        (
            lambda opt: ipu.optimizers.MapGradientOptimizer(opt, lambda g, v: g),
            "not there for models in stages",
        ),
    ],
)
def test_refuses_optimizers_that_do_not_go_together_with_it(configure, wrap, match):
    configure(2)
    with pytest.raises(ValueError, match=match):
        Line(wrap(keras.optimizers.SGD())).train()


def test_refuses_stages_that_hand_nothing_on(configure):
    configure(2)
    with pytest.raises(ValueError, match="Stage 0 returns nothing that depends on its arguments"):
        computed([lambda x: None, lambda: 1.0])
    with pytest.raises(ValueError, match="The last stage returns nothing"):
        computed([identity, lambda x: None])
    with pytest.raises(ValueError, match="A function of a concurrent stage returns a dict"):
        computed([identity, [identity, lambda x: {"x": x}]], device_mapping=[0, 1])


def test_refuses_to_be_the_body_of_a_loop(configure):
    configure(2)
    with pytest.raises(NotImplementedError, match="Pass it repeat_count"):
        ipu.loops.repeat(2, lambda: pipeline([double, identity], 2, inputs=[1.0]))


def test_says_that_the_data_ended_or_changed(configure):
    configure(2)
    with pytest.raises(RuntimeError, match="ended after 3 elements"):
        computed([double, identity], 4, infeed_queue=numbers(3))
    rows = Infeed([np.zeros(2, "float32"), np.zeros(1, "float32")])
    with pytest.raises(ValueError, match="differ in shape"):
        computed([double, identity], infeed_queue=rows)


def test_says_once_what_has_no_effect(configure, caplog):
    configure(2)
    for _ in range(2):
        computed(
            [double, recomputation_checkpoint],
            offload_activations=True,
            gradient_accumulation_for_captured_grads=False,
        )
    assert caplog.text.count("in pipeline: gradient_accumulation_for_captured_grads, offload") == 1
    assert caplog.text.count("recomputation_checkpoint") == 1
