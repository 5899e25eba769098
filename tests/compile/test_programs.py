"""The structure of programs that are compiled for a TPU and for a GPU.

Weights and optimizer state are updated in place, gradients are exchanged once per weight update,
and nothing waits for the host.
"""

import re
from dataclasses import dataclass
from functools import partial

import convoy
import jax
import pytest
from convoy import strategy as strategies
from convoy.compile import output
from convoy.compile.console import Console
from convoy.compile.exported import run_exported
from convoy.compile.session import compile_run
from convoy.compile.targets import Target, parse_target
from convoy.compile.toolchain import open_target
from convoy.pipeline import NAMES
from tests import parts
from tests.compile.networks import SIDE, compiled_model, data, deep, network, wide

pytestmark = [pytest.mark.targets, pytest.mark.slow, pytest.mark.integration]

TPU = pytest.param("tpu:v5e:2x2", marks=parts.needs("libtpu"), id="tpu")
GPU = pytest.param("gpu:h100:4", marks=parts.needs("JAX's CUDA plugin"), id="gpu")
SAMPLES, BATCH = 64, 4
PRECISIONS = {
    "32.32": "float32",
    "16.32": "float16",
    "16.16": "float16",
    "bf16.32": "bfloat16",
    "bf16.16": "bfloat16",
}


@pytest.fixture(params=[TPU, GPU])
def target(request):
    return parse_target(request.param)


@pytest.fixture
def compile_for_target(target):
    """Return a function that compiles a run for the target, and returns its programs by name."""

    def compile_it(run, *args, **kwargs):
        result = compiled(target, lambda: run(*args, **kwargs))
        assert result.fits
        for program in result.programs:
            assert not program.host_calls
            assert not [name for name in program.custom_calls if "convoy" in name], "CPU kernels"
        return {program.name: program for program in result.programs}

    return compile_it


def compiled(target, run):
    with Console() as console:
        return compile_run(target, open_target(target), run, console)


def fit(devices=4, make=network, batch=BATCH, samples=SAMPLES, stages=1, **strategy):
    model = compiled_model(convoy.Strategy(devices, **strategy), make)
    if stages > 1:
        convoy.split(model, stages, batch_size=batch)
    model.fit(*data(samples, model.input_shape[1]), batch_size=batch)
    return model


def assert_updates_in_place(program):
    assert program.aliased_arrays == program.donated_arrays > 10
    # A TPU pads arrays to whole tiles.
    assert program.memory["alias"] >= program.donated


def exchanges(program):
    return {collective.kind: collective.count for collective in program.collectives}


def exchanged_bytes(program, kind):
    return sum(found.bytes for found in program.collectives if found.kind == kind)


def test_one_device_trains_evaluates_and_predicts(compile_for_target):
    def run():
        model = fit(1)
        model.evaluate(*data(SAMPLES), batch_size=BATCH)
        model.predict(data(SAMPLES)[0], batch_size=BATCH)

    programs = compile_for_target(run)
    assert list(programs) == ["train", "evaluate", "predict"]
    assert_updates_in_place(programs["train"])
    for program in programs.values():
        assert program.devices == 1
        assert exchanges(program) == {}
        # Metrics are updated in place; weights are only read.
        assert program.aliased_arrays == program.donated_arrays


def test_replicas_exchange_gradients_once(compile_for_target):
    def run():
        model = fit()
        model.evaluate(*data(SAMPLES), batch_size=BATCH)
        model.predict(data(SAMPLES)[0], batch_size=BATCH)

    programs = compile_for_target(run)
    train = programs["train"]
    assert train.devices == 4
    assert_updates_in_place(train)
    assert exchanges(train) == {"all-reduce": 1}
    assert exchanges(programs["evaluate"]) == {"all-reduce": 1}
    assert exchanged_bytes(programs["evaluate"], "all-reduce") < 64
    assert exchanges(programs["predict"]) == {}


def test_accumulated_gradients_are_exchanged_once_per_weight_update(compile_for_target):
    one = compile_for_target(fit)["train"]
    four = compile_for_target(fit, gradient_accumulation=4)["train"]
    assert exchanges(four) == {"all-reduce": 1}
    assert four.flops == 4 * one.flops
    assert_updates_in_place(four)


@pytest.mark.parametrize("make", [network, partial(wide, depth=2)], ids=["convolution", "dense"])
def test_data_are_read_where_they_are(compile_for_target, make):
    """More data on the device take no more temporary memory: no program copies them."""
    settings = {"make": make, "devices": 1}
    few = compile_for_target(fit, samples=4 * BATCH, **settings)["train"]
    many = compile_for_target(fit, samples=4096 * BATCH, **settings)["train"]
    added = (4096 - 4) * BATCH * SIDE * SIDE * 3 * 4
    assert many.memory["argument"] - few.memory["argument"] >= added
    assert many.memory["temp"] - few.memory["temp"] < added / 100


# `wide` has 4 weights of 1024 x 1024, and two that are sharded as well but are far smaller.
SHARDED, BYTES = 4 + 2, 4 * 1024 * 1024 * 4
SMALL_BYTES = 100_000


def test_a_sharded_optimizer_state_is_a_quarter_on_each_device(compile_for_target):
    whole = compile_for_target(fit, make=wide)["train"]
    sharded = compile_for_target(fit, make=wide, shard="optimizer")["train"]
    assert whole.donated - sharded.donated == pytest.approx(BYTES * 3 / 4, abs=SMALL_BYTES)
    assert_updates_in_place(sharded)
    assert exchanged_bytes(whole, "all-reduce") == pytest.approx(BYTES, abs=SMALL_BYTES)
    assert_exchanges_shards(sharded)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_sharded_weights_are_exchanged_once_per_weight_update(compile_for_target, accumulation):
    sharded = compile_for_target(
        fit, make=wide, shard="weights", gradient_accumulation=accumulation
    )["train"]
    # A quarter of weights and momentum.
    assert sharded.donated == pytest.approx(2 * BYTES / 4, abs=SMALL_BYTES)
    assert_updates_in_place(sharded)
    assert_exchanges_shards(sharded)


def assert_exchanges_shards(program):
    """Each large weight is gathered once and its gradient scattered once, in a weight update.

    XLA may combine several of them. The small rest is all-reduced with the metrics.
    """
    counts = exchanges(program)
    # Where the shards of a TPU's reduce-scatter are whole tiles, their ends are sent on.
    permuted = exchanged_bytes(program, "collective-permute")
    assert permuted < BYTES / 8
    assert set(counts) - {"collective-permute"} == {"all-reduce", "all-gather", "reduce-scatter"}
    assert counts["all-reduce"] == 1
    assert counts["all-gather"] <= SHARDED
    assert counts["reduce-scatter"] <= SHARDED
    scattered = exchanged_bytes(program, "reduce-scatter")
    assert BYTES / 4 - SMALL_BYTES < scattered < BYTES / 4 + permuted + SMALL_BYTES
    assert exchanged_bytes(program, "all-reduce") < SMALL_BYTES
    # A TPU gathers weights in bfloat16, the type in which it multiplies float32.
    gathered = exchanged_bytes(program, "all-gather")
    assert BYTES / 2 <= gathered <= BYTES + SMALL_BYTES


def test_weights_that_are_gathered_for_each_micro_batch_take_less_memory(
    compile_for_target, monkeypatch
):
    settings = {"make": large, "gradient_accumulation": 4}
    whole = compile_for_target(fit, **settings)["train"]
    once = compile_for_target(fit, shard="weights", **settings)["train"]
    monkeypatch.setattr(strategies, "GATHERED_PART", 1 << 60)
    each = compile_for_target(fit, shard="weights", **settings)["train"]
    assert_updates_in_place(each)
    # XLA for GPUs combines neighbouring gathers, so that several layers are held at a time.
    assert each.memory["temp"] < 0.8 * once.memory["temp"]
    assert each.total_bytes < once.total_bytes < whole.total_bytes
    # For each micro-batch: a gather for the forward pass, one for the backward pass, and a scatter.
    assert exchanges(each)["all-gather"] > 2 * exchanges(once)["all-gather"]


def large():
    """Return a network whose weights do not fit into the fast memory of a TPU."""
    return wide(width=2048, depth=6)


def test_activation_checkpointing_takes_less_memory(compile_for_target):
    settings = {"devices": 1, "make": lambda: deep(side=32, depth=5), "batch": 256, "samples": 256}
    kept = compile_for_target(fit, **settings)["train"]
    names = [f"{kind}{number}" for kind in ("conv", "silu") for number in range(4)]
    again = compile_for_target(fit, activation_checkpointing=names, **settings)["train"]
    assert again.flops > kept.flops
    assert again.memory["temp"] < kept.memory["temp"]
    assert_updates_in_place(again)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision(compile_for_target, precision):
    strategy = {"precision": precision}
    if precision.startswith("16"):
        strategy["loss_scale"] = "auto"
    train = compile_for_target(fit, 2, **strategy)["train"]
    assert set(train.convolution_types) == {PRECISIONS[precision]}
    assert_updates_in_place(train)
    # Metrics are summed in float32, apart from gradients in 16 bits.
    assert exchanges(train)["all-reduce"] <= (2 if precision.endswith(".16") else 1)


@pytest.mark.parametrize("schedule", NAMES)
def test_the_stages_of_a_pipeline(compile_for_target, schedule):
    def run():
        model = compiled_model(convoy.Strategy(4, gradient_accumulation=4))
        convoy.split(model, ["pooling"])
        model.set_pipelining_options(schedule=schedule)
        model.fit(*data(SAMPLES), batch_size=BATCH)

    programs = compile_for_target(run)
    assert "stage 0 forward" in programs
    # A zero-bubble schedule divides a backward pass into two programs.
    for stage in ("stage 0 backward", "stage 1 backward"):
        assert any(name.startswith(stage) for name in programs)
    for name, program in programs.items():
        if name.startswith("stage"):
            assert (program.devices, exchanges(program)) == (1, {})
    # Two replicas of each stage exchange their gradients, in a program of their own.
    for number in (0, 1):
        assert programs[f"device {number} reduce"].devices == 2
        assert exchanges(programs[f"device {number} reduce"]) == {"all-reduce": 1}


@pytest.mark.parametrize(
    ("target", "devices"),
    [
        pytest.param(
            "tpu:v5e:4x4",
            16,
            marks=[
                parts.needs("libtpu"),
                pytest.mark.xfail(
                    reason="libtpu rejects an all-reduce over 8 of 16 chips",
                    raises=jax.errors.JaxRuntimeError,
                    strict=True,
                ),
            ],
        ),
        pytest.param("gpu:h100:2x2", 4, marks=parts.needs("JAX's CUDA plugin")),
    ],
    indirect=["target"],
)
def test_replicas_of_a_pipeline_exchange_gradients_over_hosts(target, compile_for_target, devices):
    assert target.hosts > 1
    settings = {"stages": 2, "gradient_accumulation": 4, "samples": devices * SAMPLES}
    programs = compile_for_target(fit, devices=devices, **settings)
    assert programs["stage 1 backward"].devices == 1
    for number in (0, 1):
        reduce = programs[f"device {number} reduce"]
        assert reduce.devices == devices // 2
        assert exchanges(reduce) == {"all-reduce": 1}


def test_a_pipeline_evaluates_and_predicts(compile_for_target):
    def run():
        model = compiled_model(convoy.Strategy(2))
        convoy.split(model, ["pooling"])
        model.evaluate(*data(SAMPLES), batch_size=BATCH)
        model.predict(data(SAMPLES)[0], batch_size=BATCH)

    programs = compile_for_target(run)
    assert programs
    for program in programs.values():
        assert (program.devices, exchanges(program)) == (1, {})
        assert program.aliased_arrays == program.donated_arrays


def test_an_exported_model(compile_for_target, tmp_path):
    convoy.export(network(), tmp_path, batch_sizes=[1, 8])
    programs = compile_for_target(run_exported, tmp_path)
    assert list(programs) == ["batch of 1", "batch of 8"]
    for program in programs.values():
        assert (program.devices, exchanges(program)) == (1, {})
        assert program.memory["argument"] > 0


@dataclass(frozen=True)
class Limited(Target):
    """Devices of which programs can use a part of the memory only."""

    limit: int

    @property
    def memory(self):
        return self.limit


@pytest.fixture
def advised(target):
    """Return a function that compiles a run for devices with a part of the memory that it needs.

    It returns the advice, and a function that returns whether a run fits.
    """

    def compile_it(part, settings):
        needed = compiled(target, lambda: fit(**settings)).largest.need.total
        small = Limited(**vars(target), limit=round(needed * part))
        too_large = compiled(small, lambda: fit(**settings))
        assert not too_large.fits
        assert output.verdict(too_large).startswith("Does not fit")
        return (
            too_large.advice,
            lambda **changes: compiled(small, lambda: fit(**settings | changes)).fits,
        )

    return compile_it


def test_following_any_advice_makes_large_activations_fit(advised):
    settings = {"make": partial(deep, side=32, depth=40), "batch": 64, "samples": 4 * 64}
    (smaller, checkpoints), fits = advised(0.9, settings)
    assert "a micro-batch of 32 instead of 64" in smaller
    assert "accumulation over 2 micro-batches" in smaller
    assert fits(batch=32, gradient_accumulation=2)
    assert 'Strategy(activation_checkpointing="auto")' in checkpoints
    assert fits(activation_checkpointing="auto")


def test_following_any_advice_makes_a_large_state_fit(advised):
    (shards, stages), fits = advised(0.9, {"make": large, "gradient_accumulation": 4})
    assert 'Strategy(shard="weights")' in shards
    assert fits(shard="weights")
    count = int(re.match(r"(\d+) pipeline stages", stages)[1])
    assert fits(stages=count)
