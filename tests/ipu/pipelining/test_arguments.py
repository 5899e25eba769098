import keras
import numpy as np
import pytest
from convoy import ipu
from convoy.ipu.ops.pipelining_ops import (
    OptimizerFunctionOutput,
    PipelineSchedule,
    PipelineStageOptions,
    RecomputationMode,
    pipeline,
    recomputation_checkpoint,
)
from convoy.ipu.pipelining.options import FailedPreconditionError
from tests.ipu.pipelining.lines import (
    Infeed,
    Line,
    Mode,
    Outfeed,
    computed,
    double,
    identity,
    numbers,
)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (
            {"computational_stages": double},
            TypeError,
            "is of type function. Pass a list of functions",
        ),
        ({"computational_stages": [double]}, ValueError, "two stages or more, but received 1"),
        ({"computational_stages": [double, 3]}, TypeError, "Stage 1 has 3 in it"),
        ({"computational_stages": [double, [[identity]]]}, TypeError, "Stage 1 has .* Pass a fun"),
        ({"computational_stages": [double, []]}, ValueError, "Stage 1 is an empty list"),
        ({"gradient_accumulation_count": None}, ValueError, "count was not passed"),
        ({"gradient_accumulation_count": -1}, ValueError, "count=-1 is out of range"),
        ({"gradient_accumulation_count": 2**31}, ValueError, "is out of range"),
        ({"gradient_accumulation_count": 1.5}, ValueError, "count=1.5 is not a number"),
        ({"repeat_count": 0}, ValueError, "repeat_count=0 is out of range"),
        (
            {"infeed_queue": [1.0]},
            TypeError,
            "infeed_queue is of type list. Pass an IPUInfeedQueue",
        ),
        (
            {"outfeed_queue": []},
            TypeError,
            "outfeed_queue is of type list. Pass an IPUOutfeedQueue",
        ),
        ({"outfeed_queue": None}, ValueError, "has 1 outputs. Pass an outfeed_queue"),
        ({"infeed_queue": None}, ValueError, "The first stage has no arguments"),
        ({"optimizer_function": 3}, TypeError, "optimizer_function=3 is not a function"),
        ({"device_mapping": 0}, TypeError, "device_mapping is of type int. Pass a list"),
        ({"device_mapping": [0]}, ValueError, "1 entries. Pass 2, one for each"),
        ({"device_mapping": [0, [1, 2]]}, ValueError, "stage 1, which has 1 functions"),
        ({"device_mapping": [0, "1"]}, ValueError, "is not a list of ints"),
        (
            {"pipeline_schedule": "Grouped"},
            TypeError,
            "of type str. Pass a PipelineSchedule",
        ),
        (
            {"recomputation_mode": 1},
            TypeError,
            "of type int. Pass a RecomputationMode",
        ),
        (
            {"forward_propagation_stages_poplar_options": [PipelineStageOptions()]},
            ValueError,
            "1 entries. Pass 2, one for each",
        ),
        (
            {"backward_propagation_stages_poplar_options": [1, 2]},
            TypeError,
            "Pass a list of PipelineStageOptions",
        ),
        (
            {"weight_update_poplar_options": {}},
            TypeError,
            "of type dict. Pass a PipelineStageOptions",
        ),
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
            "does not support the Grouped schedule. Pass Sequential",
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
            "schedule does not support Recompute",
        ),
        ({"reduction_method": "max"}, ValueError, "'max' is not a GradientAccumulationReduction"),
        (
            {"batch_serialization_iterations": 2, "reduction_method": "mean"},
            ValueError,
            r"needs reduction_method SUM, but it is MEAN\. Pass SUM",
        ),
        ({"optimizer_function": lambda loss: loss}, TypeError, "not an OptimizerFunctionOutput"),
        (
            {"optimizer_function": lambda _: OptimizerFunctionOutput(keras.optimizers.SGD(), 1.0)},
            ValueError,
            "The loss is 1.0. Return a tensor",
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
            "The pipeline accumulates gradients. Pass",
        ),
        (
            lambda opt: ipu.optimizers.MapGradientOptimizer(opt, lambda g, v: g),
            "not supported with pipeline stages",
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
    with pytest.raises(NotImplementedError, match=r"Pass repeat_count to pipeline\(\)"):
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
