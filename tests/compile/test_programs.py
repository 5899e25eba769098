"""The structure of programs that are compiled for a TPU and for a GPU.

Weights and optimizer state are updated in place, gradients are exchanged once per weight update,
and nothing waits for the host.
"""

import convoy
import pytest
from convoy.compile.console import Console
from convoy.compile.session import compile_run
from convoy.compile.targets import parse_target
from convoy.compile.toolchain import open_target
from tests import parts
from tests.compile.networks import compiled_model, data, network

pytestmark = [pytest.mark.targets, pytest.mark.slow, pytest.mark.integration]

TPU = pytest.param("tpu:v5e:2x2", marks=parts.needs("libtpu"), id="tpu")
GPU = pytest.param("gpu:h100:4", marks=parts.needs("JAX's CUDA plugin"), id="gpu")
SAMPLES, BATCH = 64, 4
PRECISIONS = {"32.32": "float32", "16.32": "float16"}


@pytest.fixture(params=[TPU, GPU])
def compile_for_target(request):
    """Return a function that compiles a run for a target, and returns its programs by name."""
    target = parse_target(request.param)

    def compile_it(run):
        with Console() as console:
            result = compile_run(target, open_target(target), run, console)
        assert result.fits
        for program in result.programs:
            assert not program.host_calls
            assert not [name for name in program.custom_calls if "convoy" in name], "CPU kernels"
        return {program.name: program for program in result.programs}

    return compile_it


def fit(strategy, make=network, **arguments):
    model = compiled_model(strategy, make)
    model.fit(*data(SAMPLES), batch_size=BATCH, **arguments)


def assert_updates_in_place(program):
    assert program.aliased_arrays == program.donated_arrays > 10
    # A TPU pads arrays to whole tiles.
    assert program.memory["alias"] >= program.donated


def exchanges(program):
    return {collective.kind: collective.count for collective in program.collectives}


def all_reduced(program):
    return sum(found.bytes for found in program.collectives if found.kind == "all-reduce")


def test_one_device(compile_for_target):
    train = compile_for_target(lambda: fit(convoy.Strategy(1)))["train"]
    assert train.devices == 1
    assert_updates_in_place(train)
    assert exchanges(train) == {}


def test_replicas_exchange_gradients_once(compile_for_target):
    train = compile_for_target(lambda: fit(convoy.Strategy(4)))["train"]
    assert train.devices == 4
    assert_updates_in_place(train)
    assert exchanges(train) == {"all-reduce": 1}


def test_accumulated_gradients_are_exchanged_once_per_weight_update(compile_for_target):
    def run(accumulation):
        fit(convoy.Strategy(4, gradient_accumulation=accumulation))

    one = compile_for_target(lambda: run(1))["train"]
    four = compile_for_target(lambda: run(4))["train"]
    assert exchanges(four) == {"all-reduce": 1}
    assert four.flops == 4 * one.flops
    assert_updates_in_place(four)


def test_a_sharded_optimizer_state_is_a_quarter_on_each_device(compile_for_target):
    def run(sharded):
        fit(convoy.Strategy(4, shard_optimizer_state=sharded))

    whole = compile_for_target(lambda: run(False))["train"]
    sharded = compile_for_target(lambda: run(True))["train"]
    assert sharded.donated < whole.donated
    assert_updates_in_place(sharded)
    # XLA for TPUs exchanges a few numbers apart from the gradients.
    assert all_reduced(sharded) < 1.5 * all_reduced(whole)


@pytest.mark.parametrize("compile_for_target", [GPU], indirect=True)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision(compile_for_target, precision):
    strategy = {"precision": precision}
    if precision.startswith("16"):
        strategy["loss_scale"] = "auto"
    train = compile_for_target(lambda: fit(convoy.Strategy(2, **strategy)))["train"]
    assert set(train.convolution_types) == {PRECISIONS[precision]}
    assert_updates_in_place(train)
    assert exchanges(train)["all-reduce"] == 1
