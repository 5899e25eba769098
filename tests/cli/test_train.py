import re
from fractions import Fraction

import pytest
from convoy.cli.train import make_parser, parse
from convoy.train.graphcore_flags import GraphcoreOptions

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


UPSTREAM = [
    "config",
    "config-path",
    "on-demand",
    "compile-only",
    "seed",
    "shuffle",
    "deterministic",
    "ckpts-per-epoch",
    "first-ckpt-epoch",
    "checkpoint-input-dir",
    "checkpoint-output-dir",
    "ckpt-all-instances",
    "clean-dir",
    "dataset",
    "dataset-path",
    "model-name",
    "eight-bit-transfer",
    "synthetic-data",
    "training",
    "micro-batch-size",
    "num-epochs",
    "logs-per-epoch",
    "weight-updates-per-epoch",
    "num-replicas",
    "gradient-accumulation-count",
    "global-batch-size",
    "precision",
    "pipeline-splits",
    "device-mapping",
    "pipeline-schedule",
    "optimizer",
    "optimizer-params",
    "loss-scaling",
    "auto-loss-scaling",
    "weight-decay",
    "l2-regularization",
    "recomputation",
    "accelerator-side-preprocess",
    "accelerator-side-reduction",
    "stochastic-rounding",
    "optimizer-state-offloading",
    "fp-exceptions",
    "nanoo",
    "lr-schedule",
    "lr-warmup-params",
    "lr-schedule-params",
    "lr-staircase",
    "dbn-replica-group-size",
    "label-smoothing",
    "pipeline-num-parallel",
    "norm-layer",
    "fused-preprocessing",
    "half-partials",
    "internal-exchange-optimization-target",
    "max-cross-replica-buffer-size",
    "max-reduce-many-buffer-size",
    "conv-dithering",
    "gather-conv-output",
    "min-remote-tensor-size",
    "stable-norm",
    "available-memory-proportion",
    "scheduling-algorithm",
    "prefetch-depth",
    "mlperf-logging",
    "wandb",
    "wandb-run-name",
    "wandb-tags",
    "validation",
    "validation-micro-batch-size",
    "validation-num-replicas",
    "pipeline-validation-model",
    "sweep",
    "target-accuracy",
]


def refused(capsys, *words):
    with pytest.raises(SystemExit) as stopped:
        parse(words)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_every_flag_of_graphcores_application_is_known():
    assert len(UPSTREAM) == 73
    known = make_parser(schema=GraphcoreOptions)._option_string_actions
    assert {f"--{name}" for name in UPSTREAM} <= set(known)


def test_help_shows_every_flag(capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: convoy train")
    assert all(flag in shown for flag in make_parser()._option_string_actions)


def test_graphcores_spellings_are_aliases():
    options = parse(
        [
            *("--model-name", "cifar_resnet8", "--gradient-accumulation-count", "8"),
            *("--recomputation", "--dbn-replica-group-size", "2"),
        ]
    )
    assert options == parse(
        [
            *("--model", "cifar_resnet8", "--gradient-accumulation", "8"),
            *("--activation-checkpointing", "--batch-norm-group", "2"),
        ]
    )
    assert options.model == "cifar_resnet8"
    assert options.gradient_accumulation == 8


def test_the_usual_names_are_flags():
    words = ["--lr", "0.1", "--momentum", "0.8", "--batch-size", "64", "--epochs", "3"]
    options = parse([*words, "--replicas", "2"])
    assert (options.learning_rate, options.momentum) == (0.1, 0.8)
    assert (options.micro_batch_size, options.num_epochs, options.num_replicas) == (64, 3, 2)


def test_defaults_are_those_of_a_recipe_if_the_program_names_one():
    ours, theirs = parse([]), parse([], defaults="graphcore_defaults")
    assert (ours.precision, ours.micro_batch_size, ours.lr_schedule) == ("32.32", 32, "cosine")
    assert (theirs.precision, theirs.micro_batch_size, theirs.lr_schedule) == ("16.16", 1, "const")
    assert theirs.optimizer_params == {"momentum": 0}
    # A recipe and flags have priority.
    words = ["--config", "mnist", "--precision", "bf16.32"]
    assert parse(words, defaults="graphcore_defaults").micro_batch_size == 128
    assert parse(words, defaults="graphcore_defaults").precision == "bf16.32"


@pytest.mark.parametrize("flag", ["--mod", "--gradient-acc", "--weight", "--model-n"])
def test_flags_are_exact(capsys, flag):
    assert f"{flag} is not a flag. Did you mean --" in refused(capsys, flag, "1")


@pytest.mark.parametrize("word", ["true", "T", "1", "Yes", "y", "ON"])
def test_words_that_mean_yes(word):
    assert parse(["--deterministic", word]).deterministic


@pytest.mark.parametrize("word", ["False", "f", "0", "no", "N", "off"])
def test_words_that_mean_no(word):
    assert not parse(["--validation", word]).validation


def test_a_bare_flag_means_yes():
    assert parse(["--deterministic"]).deterministic
    assert parse(["--half-partials"], schema=GraphcoreOptions).half_partials


def test_flags_without_effect_are_those_of_graphcores_program_only(capsys):
    assert "--half-partials is not a flag" in refused(capsys, "--half-partials")


@pytest.mark.parametrize("word", ["interleaved", "Interleaved", "INTERLEAVED"])
def test_words_are_taken_in_any_case(word):
    assert parse(["--pipeline-schedule", word]).pipeline_schedule == "1f1b"


def test_fractions_stay_exact():
    assert parse(["--logs-per-epoch", "1/49"]).logs_per_epoch == Fraction(1, 49)
    assert parse(["--logs-per-epoch", "0.5"]).logs_per_epoch == Fraction(1, 2)


def test_dictionaries_are_yaml_or_json():
    options = parse(["--optimizer-params", "{momentum: 0.9}", "--norm-layer", '{"name": "x"}'])
    assert options.optimizer_params == {"momentum": 0.9}
    assert parse(["--lr-schedule-params", "{a: 1e-5}"]).lr_schedule_params == {"a": 1e-5}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--modle", "x"], "--modle is not a flag. Did you mean --model"),
        (["--epoch", "3"], "--epoch is not a flag. Did you mean --epochs"),
        (["stray"], "'stray' was not expected"),
        (
            ["--pipeline-schedule", "x"],
            r"one of sequential, gpipe, 1f1b, zero-bubble\.$",
        ),
        (["--dataset", "cifar"], "'cifar' is not one of .* Did you mean cifar10"),
        (["--batch-size", "0"], "error: --batch-size 0: pass 1 or more"),
        (["--micro-batch-size", "0"], "error: --micro-batch-size 0: pass 1 or more"),
        (["--num-epochs", "many"], "error: --num-epochs: 'many' is not a whole number"),
        (["--validation", "perhaps"], "'perhaps' is neither true nor false"),
        (["--logs-per-epoch", "1/2/3"], "'1/2/3' is not a number. Pass one, or a fraction"),
        (["--logs-per-epoch", "1/0"], "'1/0' is not a number. Pass one, or a fraction"),
        (["--optimizer-params", "momentum"], "is not a dictionary"),
        (["--config", "resnet8_tset"], "'resnet8_tset' is not a recipe .* Did you mean resnet8_t"),
        (["--config", "x", "--config-path", "/nowhere.yml"], "cannot be read"),
        (["--config-path", "/nowhere.yml"], "cannot be read"),
    ],
)
def test_what_cannot_be_understood_is_one_line(capsys, words, message):
    assert re.search(message, refused(capsys, *words))
