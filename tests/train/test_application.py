"""The application as a user runs it, on small data."""

import csv
import re
import shutil

import numpy as np
import pytest
from convoy.cli.train import parse
from convoy.data.catalog import load
from convoy.data.records import masked_checksum
from convoy.report.files import read
from convoy.train.models import make_model
from convoy.train.serving_model import make_serving_model
from convoy.train.validation import load_checkpoint

pytestmark = pytest.mark.integration

SMALL = ("--precision", "32.32", "--seed", 1, "--micro-batch-size", 5)


def accuracies(text, phase):
    return [float(value) for value in re.findall(rf"{phase}_accuracy: ([\d.]+) %", text)]


def test_trains_validates_and_leaves_a_run_behind(application, tmp_path):
    done = application(*SMALL, "--num-epochs", 2, "--gradient-accumulation", 2)
    assert done.status == 0, done.err
    assert len(re.findall(r"^batch \d+: \['throughput: [\d.]+ samples/sec'", done.out, re.M)) == 2
    assert "'Compilation Time: " in done.out
    assert re.search(r"'loss: [\d.]+', 'training_accuracy: ", done.out)
    assert len(accuracies(done.out, "validation")) == 2
    (folder,) = (tmp_path / "runs").iterdir()
    names = {path.name.split(".")[0] for path in folder.iterdir()}
    assert names == {"recipe", "metrics", "events", "curves", "checkpoints", "state"}
    saved = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert saved == ["epoch_1.0.weights.h5", "epoch_2.0.weights.h5"]
    assert re.search(r"best checkpoint +runs/\S+/epoch_[12]\.0\.weights\.h5 \([\d.]+%\)", done.out)
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["phase"] for row in rows] == ["training"] * 2 + ["validation"] * 2
    assert [float(row["epoch"]) for row in rows] == [1, 2, 1, 2]
    assert [float(row["update"]) for row in rows] == [5, 10, 5, 10]

    # Validation of the folder later, on other numbers of devices, loses no sample either.
    kept = shutil.copytree(folder / "checkpoints", tmp_path / "kept")
    later = application(
        *SMALL,
        "--training",
        False,
        "--checkpoint-input-dir",
        kept,
        "--validation-micro-batch-size",
        4,
        "--validation-num-replicas",
        2,
        "--clean-dir",
    )
    assert later.status == 0, later.err
    assert accuracies(later.out, "validation") == accuracies(done.out, "validation")
    assert sorted(path.name for path in kept.iterdir()) == saved


def test_checkpoints_follow_their_frequency_and_phase(application, tmp_path):
    done = application(
        *SMALL,
        *("--weight-updates-per-epoch", 1, "--num-epochs", 5),
        *("--ckpts-per-epoch", "1/3", "--first-ckpt-epoch", 2),
        # One folder for both: what the run writes there is validated.
        *("--checkpoint-output-dir", "here", "--checkpoint-input-dir", "here"),
    )
    assert done.status == 0, done.err
    assert len(accuracies(done.out, "validation")) == 2
    saved = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert saved == ["epoch_2.0.weights.h5", "epoch_5.0.weights.h5"]


def test_both_phases_are_in_one_report(application, tmp_path):
    done = application(*SMALL, "--output-dir", "run", "--report")
    assert done.status == 0, done.err
    assert "convoy report run/report" in done.out
    report = read(tmp_path / "run" / "report")
    assert {program["name"] for program in report.programs} >= {"train", "evaluate"}
    assert report.run["totals"]["devices"]["evaluate"]["samples"] == 23
    # The weights of an epoch, and all that the run needs to go on.
    assert report.run["totals"]["host"]["checkpoint"]["count"] == 2
    assert report.run["state"] == "ended"


def test_without_checkpoints_the_final_weights_are_validated(application, tmp_path):
    words = (*SMALL, "--ckpts-per-epoch", 0, "--weight-updates-per-epoch", 1, "--deterministic")
    done = application(*words, "--eight-bit-transfer", "--accelerator-side-preprocess")
    assert done.status == 0, done.err
    assert "evaluating final training weights" in done.err
    assert "--deterministic turns --shuffle off" in done.err
    assert len(accuracies(done.out, "validation")) == 1
    assert not list((tmp_path / "runs").glob("*/checkpoints"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no-such-flag"], "--no-such-flag is not a flag"),
        (["--model", "toy_modle"], "'toy_modle' is not a model. Did you mean toy_model"),
        (["--pipeline-splits", "auto"], "pass auto and a number of stages, 2 or more"),
        (["--ema", "1"], "--ema 1.0: pass a momentum from 0 to less than 1"),
        (["--pipeline-splits", "conv2d_7"], "'conv2d_7' is not a layer of 'toy_model'"),
        (["--pipeline-splits", "flatten", "conv2d_1"], "'conv2d_1': it does not come after"),
        (["--dataset-path", "/nowhere"], "/nowhere: there is no such folder"),
        (["--checkpoint-input-dir", "/nowhere"], "/nowhere: there is no such folder"),
        (["--lr-schedule", "polynomial"], "end_learning_rate_ratio, power is missing"),
        (["--optimizer", "lars"], "weight_decay, eeta, epsilon is missing"),
        (["--wandb"], "--wandb needs the package wandb"),
        (["--replicas", "2", "--dbn-replica-group-size", "3"], "--dbn-replica-group-size 3 does"),
        (["--num-replicas", "64"], "50 images cannot fill a weight update of 320"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(application, tmp_path, words, message):
    done = application(*SMALL, *words, data="--dataset-path" not in words)
    assert done.status == 2
    *_, error = done.err.strip().splitlines()
    assert error.startswith("convoy train: error: ")
    assert message in error
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_of_another_model_are_named(application, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "epoch_1.0.weights.h5").write_bytes(b"nothing of the kind")
    words = (*SMALL, "--training", False, "--checkpoint-input-dir", "old")
    done = application(*words)
    assert done.status == 2
    assert "epoch_1.0.weights.h5 does not hold the weights of toy_model" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    (tmp_path / "old" / "epoch_1.0.weights.h5").rename(tmp_path / "old" / "mine.h5")
    assert "mine.h5 does not have its epoch in its name" in application(*words).err


def test_the_checksum_of_event_files_is_crc32c():
    # The known answer for "123456789" is 0xE3069283, before it is turned and shifted.
    plain = 0xE3069283
    turned = (plain >> 15 | plain << 17) + 0xA282EAD8 & 0xFFFFFFFF
    assert masked_checksum(b"123456789") == turned


FLAGS = {
    "recipe resnet8_test": ["--config", "resnet8_test", "--micro-batch-size", 5],
    "logs every third epoch": ["--num-epochs", 3, "--logs-per-epoch", "1/3"],
    "no logs": ["--num-epochs", 2, "--logs-per-epoch", 0],
    "mnist shapes with smoothing": ["--synthetic-data", "cpu", "--dataset", "mnist"],
    "synthetic data of the host": ["--synthetic-data", "cpu"],
    "synthetic bytes of the device": [
        *("--synthetic-data", "ipu", "--eight-bit-transfer", "--accelerator-side-preprocess"),
    ],
    "device preprocessing": ["--accelerator-side-preprocess"],
    "stages with recomputation": [
        *("--pipeline-splits", "conv2d_1", "flatten", "--recomputation"),
        *("--gradient-accumulation", 4, "--model", "toy_model_bn"),
    ],
    "stages on one device": [
        *("--pipeline-splits", "conv2d_1", "--device-mapping", 0, 0, "--recomputation"),
        *("--pipeline-schedule", "Sequential", "--loss-scaling", 128),
    ],
    "interleaved stages": [
        *("--pipeline-splits", "conv2d_1", "--pipeline-schedule", "Interleaved"),
    ],
    "a global batch of 10": ["--global-batch-size", 10, "--num-replicas", 2],
    "16.32": ["--precision", "16.32", "--loss-scaling", 8],
    "16.16 with automatic loss scaling": ["--precision", "16.16", "--auto-loss-scaling"],
    "16.16 without rounding": ["--precision", "16.16", "--stochastic-rounding", "OFF"],
    "exceptions": ["--fp-exceptions"],
    "cosine": [
        *("--lr-schedule", "cosine", "--lr-staircase"),
        *("--lr-schedule-params", "{initial_learning_rate: 1e-3, epochs_to_total_decay: 1}"),
        *("--lr-warmup-params", "{warmup_mode: shift, warmup_epochs: 1}"),
    ],
    "stepped": [
        *("--lr-schedule", "stepped"),
        *("--lr-schedule-params", "{boundaries: [0.5], values: [0.1, 0.01]}"),
        *("--lr-warmup-params", "{warmup_mode: mask, warmup_epochs: 1}"),
    ],
    "lars": [
        *("--optimizer", "lars", "--l2-regularization", 1e-4),
        *("--optimizer-params", "{momentum: 0.9, weight_decay: 1e-5, eeta: 0.001, epsilon: 0}"),
    ],
    "rmsprop with decay": [
        *("--optimizer", "rmsprop", "--weight-decay", 1e-4),
        *("--optimizer-params", "{momentum: 0.9, base_decay_exponent: -8, epsilon: 1e-3}"),
    ],
    "adamw with clipping": ["--optimizer", "adamw", "--clip-norm", 1],
    "adaptive clipping and averaged weights": [
        *("--adaptive-clip", 0.01, "--ema", 0.9, "--l2-regularization", 1e-4),
    ],
    "lookahead in 16 bits": ["--lookahead", 2, "--precision", "16.16", "--num-replicas", 2],
    "averaged weights of replicas": ["--ema", 0.9, "--num-replicas", 2],
    "stages where they are cheapest": [
        *("--pipeline-splits", "auto", 2, "--gradient-accumulation", 4, "--ema", 0.5),
    ],
    "mixing images": ["--mixup", 0.2, "--cutmix", 1.0, "--label-smoothing", 0.1],
    "random augmentation": ["--rand-augment", 0.5],
    "random erasing": ["--random-erasing", 0.5, "--accelerator-side-preprocess"],
    "group norm": ["--model", "toy_model_bn", "--norm-layer", "{name: group_norm, num_groups: 2}"],
    "shared batch norm": [
        *("--model", "toy_model_bn", "--num-replicas", 2, "--dbn-replica-group-size", 2),
    ],
    "deterministic": ["--deterministic"],
    "images in other ways": [
        *("--flip", "alternating", "--crop-padding", 2, "--crop-border", "reflect"),
        *("--normalisation", "cifar10"),
    ],
    "alternating flips alone": ["--flip", "alternating", "--crop-padding", 0],
    "whitening in stages": [
        *("--model", "cifar_fast", "--pipeline-splits", "block2_conv1"),
        *("--gradient-accumulation", 2, "--accelerator-side-preprocess"),
    ],
    "a rehearsal first": ["--mlperf-logging", "--optimizer-params", "{momentum: 0.9}"],
    "a sweep": ["--sweep", "--target-accuracy", 0.01],
}


@pytest.mark.slow
def test_the_fast_recipe_whitens_by_the_data_and_learns(application, tmp_path):
    words = ("--config", "cifar10_fast", "--micro-batch-size", 5, "--num-epochs", 2, "--seed", 1)
    done = application(*words, "--output-dir", "run", "--ckpts-per-epoch", 1)
    assert done.status == 0, done.err
    first, second = (float(loss) for loss in re.findall(r"batch .*'loss: ([\d.]+)'", done.out))
    assert second < first
    assert len(accuracies(done.out, "validation")) == 2
    kernels = []
    for epoch in (1, 2):
        checkpoint = tmp_path / "run" / "checkpoints" / f"epoch_{epoch}.0.weights.h5"
        model = make_serving_model(parse(["--config", "cifar10_fast"]), checkpoint).model
        kernels.append(model.get_layer("whiten").kernel.numpy().reshape(12, 24))
    np.testing.assert_array_equal(*kernels)
    directions = kernels[0][:, :12] / np.linalg.norm(kernels[0][:, :12], axis=0)
    np.testing.assert_allclose(directions.T @ directions, np.eye(12), atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*sub-?normal:UserWarning")
@pytest.mark.parametrize("words", FLAGS.values(), ids=FLAGS)
def test_flags_work_together(application, words):
    done = application(*SMALL, "--weight-updates-per-epoch", 2, *words)
    assert done.status == 0, done.err
    if "--logs-per-epoch" not in words or "1/3" in words:
        assert re.search(r"'loss: [\d.]+', 'training_accuracy: [\d.]+ %'", done.out)
    if "--config" not in words:
        assert accuracies(done.out, "validation")


@pytest.mark.parametrize("replicas", [1, 2])
def test_views_are_averaged_whatever_the_batch(application, tmp_path, small_cifar, replicas):
    device = ("--eight-bit-transfer", "--accelerator-side-preprocess")
    words = (*SMALL, *device, "--output-dir", "run", "--ckpts-per-epoch", 1)
    done = application(*words, "--validation-views", 6, "--validation-num-replicas", replicas)
    assert done.status == 0, done.err
    checkpoint = tmp_path / "run" / "checkpoints" / "epoch_1.0.weights.h5"
    network = make_serving_model(parse([str(word) for word in (*SMALL, *device)]), checkpoint).model
    images, labels = load("cifar10", small_cifar).test
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), "reflect")
    logits = 0.0
    for view, weight in ((images, 2), (padded[:, :-2, :-2], 1), (padded[:, 2:, 2:], 1)):
        for seen in (view, view[:, :, ::-1]):
            logits += weight / 8 * np.log(np.asarray(network(seen)))
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loss = -np.log(shares[np.arange(len(labels)), labels]).mean()
    said = re.search(r"validation: .*'loss: ([\d.]+)'", done.out)[1]
    assert float(said) == pytest.approx(loss, abs=1e-4)
    right = 100 * (shares.argmax(1) == labels).mean()
    assert accuracies(done.out, "validation") == [pytest.approx(right, abs=0.01)]


@pytest.mark.slow
def test_a_rehearsal_changes_nothing(application):
    words = (*SMALL, "--weight-updates-per-epoch", 2, "--optimizer-params", "{momentum: 0.9}")
    losses = [
        re.search(r"training loss +(\S+)", application(*words, *more).out)[1]
        for more in ((), ("--mlperf-logging",))
    ]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_a_runs_recipe_repeats_it(application, tmp_path):
    first = application(*SMALL, "--num-epochs", 2, "--output-dir", "a")
    words = ("--config-path", "a/recipe.yml", "--config", "run", "--output-dir", "b")
    second = application(*words, data=False)
    for name in ("training loss", "held-out accuracy"):
        values = [re.search(rf"{name} +(\S+)", run.out)[1] for run in (first, second)]
        assert values[0] == values[1]
    lines = [(tmp_path / folder / "metrics.csv").read_text().splitlines() for folder in "ab"]
    rows = [list(csv.DictReader(text)) for text in lines]
    assert [row["loss"] for row in rows[0]] == [row["loss"] for row in rows[1]]


@pytest.mark.slow
def test_replicas_and_accumulation_do_not_change_the_update(application):
    def losses(*words):
        done = application(
            "--precision", "32.32", "--seed", 1, "--num-epochs", 2, "--augment", False, *words
        )
        return [float(value) for value in re.findall(r"'loss: ([\d.]+)'", done.out)]

    plain = losses("--micro-batch-size", 20)
    for words in (
        ("--micro-batch-size", 10, "--num-replicas", 2),
        ("--micro-batch-size", 5, "--gradient-accumulation", 4),
        ("--micro-batch-size", 5, "--num-replicas", 2, "--gradient-accumulation", 2),
        (
            *("--micro-batch-size", 5, "--gradient-accumulation", 4),
            *("--pipeline-splits", "conv2d_1", "--pipeline-schedule", "Interleaved"),
        ),
    ):
        np.testing.assert_allclose(losses(*words), plain, atol=2e-4)


def metrics(folder):
    return (folder / "metrics.csv").read_text().splitlines()


@pytest.mark.slow
def test_checkpoints_hold_the_average_of_the_weights(application, tmp_path):
    """With a momentum of nearly 1, that is nearly what training began with."""
    words = (*SMALL, "--num-epochs", 2, "--lr-schedule-params", "{initial_learning_rate: 0.05}")
    held = {}
    for ema in (0.0, 0.9999):
        done = application(*words, "--ema", ema, "--output-dir", f"ema{ema}")
        assert done.status == 0, done.err
        saved = tmp_path / f"ema{ema}" / "checkpoints"
        models = []
        for epoch in (1, 2):
            model = make_model("toy_model", (32, 32, 3), 10)
            load_checkpoint(model, saved / f"epoch_{epoch}.0.weights.h5")
            models.append(np.concatenate([np.ravel(w) for w in model.get_weights()]))
        held[ema] = np.abs(models[1] - models[0]).max()
    assert held[0.9999] < held[0.0] / 20
    # Averages are looked at, not trained with.
    losses = [
        [row["loss"] for row in csv.DictReader(metrics(tmp_path / f"ema{ema}"))][:2]
        for ema in (0.0, 0.9999)
    ]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_four_epochs_leave_four_checkpoints_each_better_than_the_one_before(application):
    words = ("--precision", "32.32", "--seed", 1, "--micro-batch-size", 10, "--augment", False)
    rate = ("--lr-schedule-params", "{initial_learning_rate: 0.0003}")
    done = application(*words, *rate, "--num-epochs", 4, "--checkpoint-output-dir", "kept")
    assert done.status == 0, done.err
    losses = re.findall(r"validation: .*'loss: ([\d.]+)'", done.out)
    assert len(losses) == 4
    assert sorted(losses, key=float, reverse=True) == losses
    assert len(set(losses)) == 4


@pytest.mark.slow
def test_an_empty_folder_of_checkpoints_is_said(application, tmp_path):
    (tmp_path / "empty").mkdir()
    words = (*SMALL, "--training", False, "--checkpoint-input-dir", "empty")
    done = application(*words)
    assert done.status == 0, done.err
    assert "empty has no checkpoint." in done.err
    assert "the weights are random" in done.err
    assert len(accuracies(done.out, "validation")) == 1


@pytest.mark.slow
def test_validation_in_stages_has_the_results_of_whole_models(application):
    words = (*SMALL, "--pipeline-splits", "conv2d_1", "--num-replicas", 2, "--num-epochs", 2)
    words += ("--pipeline-schedule", "Interleaved", "--gradient-accumulation", 2)
    whole, staged = application(*words), application(*words, "--pipeline-validation-model")
    assert (whole.status, staged.status) == (0, 0), staged.err
    assert "pipeline-validation-model" not in staged.err
    assert accuracies(staged.out, "validation") == accuracies(whole.out, "validation")
