"""The commands of examples/cosmoflow, at a small size, on record files in the real format."""

import csv
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from convoy.data import records

from cosmoflow import volume_files

FOLDER = Path(__file__).parents[3] / "examples" / "cosmoflow"
POPRUN = "poprun --num-replicas 2 --num-instances 2 --ipus-per-replica 1 --numa-aware 1"
FINAL = (
    r"Took [\d.]+ minutes, i\.e\. [\d.]+ samples per second for batch-size {} and no\. IPUs = {}"
)
SHAPE = (8, 8, 8, 4)


@pytest.fixture(scope="module")
def script():
    """The names in train.py, run in this process."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield runpy.run_path(str(FOLDER / "train.py"))
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Compressed files of volumes whose density grows with their targets."""
    root = tmp_path_factory.mktemp("volumes")
    rng = np.random.default_rng(0)
    for split, count in (("train", 8), ("validation", 3)):
        (root / split).mkdir()
        for number in range(count):
            targets = rng.uniform(-1, 1, 4)
            volume = rng.poisson(np.exp(1 + targets), SHAPE)
            data = [volume_files.encode(volume, targets.tolist())]
            path = root / split / f"univ_ics_2019-03_a1000{number}.tfrecord"
            records.write_file(path, data, compressed=True)
    return root


@pytest.fixture
def config(data, tmp_path):
    """A file of settings for these volumes."""
    tree = {
        "output_dir": str(tmp_path / "run"),
        "data": {
            "name": "cosmo",
            "data_dir": str(data),
            "n_train": 8,
            "n_valid": 3,
            "apply_log": True,
            "sample_shape": list(SHAPE),
            "micro_batch_size": 2,
            "n_epochs": 2,
            "workers": 1,
        },
        "model": {"name": "cosmoflow", "conv_size": 2, "n_conv_layers": 2, "dropout": 0.2},
        "optimizer": {"name": "SGD", "lr": 0.05},
        "train": {"loss": "mse", "metrics": ["mae"]},
        "ipu_config": {"iterations_per_loop": 2},
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def run(script, capsys, *words):
    status = script["main"](script["NETWORKS"], FOLDER, [str(word) for word in words])
    said = capsys.readouterr()
    assert status == 0, said.err
    return said.out.splitlines()


def launch(config, *words):
    """Run a command of the page in two processes."""
    programs = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(
        [programs / "poprun", *POPRUN.split()[1:], "python", "train.py", config, *words],
        cwd=FOLDER,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("[0] ") for line in done.stdout.splitlines()]


def history(config):
    folder = Path(yaml.safe_load(config.read_text())["output_dir"])
    with (folder / "history.csv").open() as file:
        return list(csv.DictReader(file))


def losses(config):
    return [(float(row["loss"]), float(row["val_loss"])) for row in history(config)]


@pytest.mark.parametrize(
    ("network", "side", "parameters"),
    [
        ("cosmoflow", 64, 619_956),
        ("cosmoflow", 128, 2_454_964),
        ("cosmoflow_v1", 64, 19_476),
        pytest.param("mlperf", 128, 8_907_556, marks=pytest.mark.slow),
    ],
)
def test_networks_have_as_many_parameters_as_their_page_says(script, network, side, parameters):
    made = script["NETWORKS"][network]((side, side, side, 4), 4, dropout=0.2)
    assert made.count_params() == parameters


def bottleneck(width, filters, *, first):
    """Count the parameters of a block: convolutions with biases, four numbers for each norm."""
    wide = 4 * filters
    inner = (width + 1) * filters + (27 * filters + 1) * filters + (filters + 1) * wide
    norms = 4 * (2 * filters + wide)
    return inner + norms + ((width + 1) * wide + 4 * wide if first else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "filters", "blocks"),
    [
        ("resnet", (32, 64, 128, 256), (2, 2, 2, 2)),
        ("mini_resnet", (32, 32, 32), (2, 2, 2)),
        pytest.param("resnet50", (64, 128, 256, 512), (3, 4, 6, 3), marks=pytest.mark.slow),
    ],
)
def test_residual_networks_are_bottlenecks_normalised_by_channel(script, network, filters, blocks):
    made = script["NETWORKS"][network]((32, 32, 32, 4), 4)
    expected, width = (7**3 * 4 + 1) * 64 + 4 * 64, 64
    for size, count in zip(filters, blocks, strict=True):
        for block in range(count):
            expected += bottleneck(width, size, first=block == 0)
            width = 4 * size
    assert made.count_params() == expected + (width + 1) * 4
    norms = [layer for layer in made.layers if "normalization" in layer.name]
    assert all(norm.gamma.shape == norm.input.shape[-1:] for norm in norms)


def test_the_command_of_the_page_trains_and_prints_its_table(script, capsys, tmp_path):
    """At the size in the README, for a few steps."""
    flags = "--n-train 3 --n-epochs 2 --iterations-per-loop 2 --conv-size 2 --print-fom"
    printed = run(
        script,
        capsys,
        FOLDER / "configs" / "graphcore.yaml",
        *flags.split(),
        "--output-dir",
        tmp_path / "run",
    )
    begin = printed.index("Compiling and Warmup...")
    patterns = [
        r"Duration: \d+\.\d{3} seconds",
        r"[\d.]+ sec/itr\.",
        r"epoch 1/2  loss [\d.]+  mae [\d.]+",
        r"[\d.]+ sec/itr\.",
        r"[\d.]+ sec/itr\.",
        r"epoch 2/2  loss [\d.]+  mae [\d.]+",
        r"Iteration, Batches/Second, Samples/Second",
        *(rf"{number}, [\d.]+, [\d.]+" for number in (1, 2, 3)),
        r"Curves: .*curves\.png",
        r"FoM: none, without validation",
        FINAL.format(1, 1),
    ]
    for line, pattern in zip(printed[begin + 1 :], patterns, strict=True):
        assert re.fullmatch(pattern, line)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "config.pkl",
        "config.yaml",
        "curves.png",
        "history.csv",
        "model.weights.h5",
    }


def test_steps_of_the_estimator_are_added_to_its_checkpoint(script, capsys, config, tmp_path):
    words = (config, "--use-estimator", "--n-epochs", 1)
    printed = run(script, capsys, *words)
    assert re.fullmatch(FINAL.format(2, 1), printed[-1])
    table = (tmp_path / "run" / "estimator_throughput.txt").read_text().splitlines()
    assert table == printed[printed.index(table[0]) :][: len(table)]
    printed = run(script, capsys, *words)
    assert any(re.match(r"4 steps are added to the 4 of .*step-00000004", line) for line in printed)
    assert [line.split("  ")[0] for line in printed if line.startswith("epoch")] == ["epoch 1/1"]
    assert [*(tmp_path / "run").glob("epoch-*step-00000008")]
    printed = run(script, capsys, *words, "--resume")
    assert re.match(r"Nothing was trained: .*step-00000008 has 8 of 4 steps", printed[-1])


@pytest.mark.slow
def test_the_estimator_resumes_from_its_checkpoint(script, capsys, config):
    run(script, capsys, config, "--use-estimator", "--n-epochs", 1)
    printed = run(script, capsys, config, "--use-estimator", "--resume")
    epochs = [line.split("  ")[0] for line in printed if line.startswith("epoch")]
    assert epochs == ["epoch 2/2"]


@pytest.mark.slow
def test_two_instances_are_one_run_with_their_gradients_exchanged(script, capsys, config):
    tree = yaml.safe_load(config.read_text())
    tree["data"]["shard"] = False  # so that one process has the same order
    config.write_text(yaml.safe_dump(tree))
    printed = launch(config)
    assert re.fullmatch(FINAL.format(2, 2), printed[-1])
    assert any("num_ipus 1 is overridden by the 2 replicas" in line for line in printed)
    launched = losses(config)
    run(script, capsys, config, "--num-ipus", 2)
    np.testing.assert_allclose(launched, losses(config), rtol=1e-5)


@pytest.mark.slow
def test_two_instances_of_the_estimator_are_one_run_and_add_to_an_earlier_one(
    script, capsys, config, tmp_path
):
    """The fourth command of the page after the third, at a small size."""
    run(script, capsys, config, "--use-estimator", "--n-epochs", 1)
    printed = launch(config, "--use-estimator")
    assert any(re.match(r"4 steps are added to the 4 of .*step-00000004", x) for x in printed)
    assert re.fullmatch(FINAL.format(2, 2), printed[-1])
    assert len(history(config)) == 2
    assert sorted(path.name for path in (tmp_path / "run").glob("epoch-*"))[-1].endswith("8")


def test_the_data_benchmark_prints_throughput_and_overhead(script, capsys, config):
    printed = run(script, capsys, config, "--data-benchmark")
    begin = printed.index("Epoch, Bandwidth(GB/s), Samples/Second")
    rows, said = printed[begin + 1 : begin + 11], printed[begin + 11 :]
    assert [int(row.split(",")[0]) for row in rows] == list(range(1, 11))
    assert re.fullmatch(
        r"Files: [\d.]+ MB/s of [\d.]+ MB a sample, [\d.]+ MB/s of 16-bit volumes; .*", said[0]
    )
    assert re.fullmatch(
        r"Training: [\d.]+ samples per second from the input, [\d.]+ from memory; the input costs "
        r"-?[\d.]+% of the time \(.* in 3 rounds of 8 samples\)",
        said[1],
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--n-train", "12"], r"data\.n_train 12: .*train has 8 files .* Use 8 or fewer"),
        (["--model", "vgg"], r"small\.yaml: model\.name 'vgg' is unknown\. Set one of cosmoflow, "),
        (["--model", "resnet"], r"model\.conv_size is not an argument of the network resnet"),
        (["--optimizer", "SDG"], r"optimizer\.name: Keras has no optimizer 'SDG'"),
        (["--activation-checkpointing", "1"], r"activation_checkpointing needs stages"),
        (["--use-estimator", "--pipeline-schedule", "grouped"], r"--use-estimator runs stages by"),
        (["--resume"], r"--resume is for --use-estimator"),
        (["--data-dir", "/nowhere"], r"There is no folder /nowhere/train"),
        (["--micro-batch-size", "3"], r"n_train 8 is not a multiple of the global batch size 3"),
    ],
)
def test_an_invalid_setting_is_one_line_and_nothing_is_written(
    script, capsys, config, tmp_path, words, problem
):
    assert script["main"](script["NETWORKS"], FOLDER, [str(config), *words]) == 2
    said = capsys.readouterr()
    assert re.search(problem, said.err)
    assert said.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_ends_the_run_and_is_named(script, capsys, config, data):
    bad = sorted((data / "train").iterdir())[5]
    whole = bad.read_bytes()
    bad.write_bytes(whole[:-200])
    try:
        status = script["main"](script["NETWORKS"], FOLDER, [str(config), "--n-epochs", "1"])
    finally:
        bad.write_bytes(whole)
    assert status == 2
    assert re.search(rf"train\.py: error: .*{bad.name}, record 0: ", capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--staged-files", "1"),
        ("--stages", "2", "--gradient-accumulation", "2"),
        (
            "--stages",
            "2",
            "--gradient-accumulation",
            "2",
            "--activation-checkpointing",
            "1",
            "--num-ipus",
            "2",
        ),
        ("--precision", "16.32"),
        ("--precision", "bf16.32", "--stages", "2"),
        ("--model", "mini_resnet"),
    ],
)
def test_every_configuration_trains_to_the_end(script, capsys, config, words):
    if "mini_resnet" in words:
        tree = yaml.safe_load(config.read_text())
        tree["model"] = {"name": "mini_resnet"}
        config.write_text(yaml.safe_dump(tree))
    run(script, capsys, config, *words)
    assert len(history(config)) == 2


@pytest.mark.slow
def test_a_pipeline_has_the_losses_of_a_single_device(script, capsys, config):
    words = ("--gradient-accumulation", "2")
    run(script, capsys, config, *words)
    whole = losses(config)
    run(script, capsys, config, *words, "--stages", "2")
    np.testing.assert_allclose(losses(config), whole, rtol=1e-5)


@pytest.mark.slow
def test_staged_files_are_the_same_samples(script, capsys, config, tmp_path):
    run(script, capsys, config)
    plain = losses(config)
    stage = tmp_path / "stage"
    run(script, capsys, config, "--staged-files", "1", "--stage-dir", stage)
    assert losses(config) == plain
    assert list(stage.iterdir()) == []


@pytest.mark.slow
def test_synthetic_fields_can_be_trained_on(tmp_path, config):
    made = subprocess.run(
        [
            *(sys.executable, "data_gen/make_fields.py", "--output", tmp_path / "fields"),
            *("--n-train", "8", "--n-valid", "4", "--size", "8", "--samples-per-file", "2"),
        ],
        cwd=FOLDER,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    tree = yaml.safe_load(config.read_text())
    tree["data"] |= {"data_dir": str(tmp_path / "fields"), "samples_per_file": 2, "n_valid": 4}
    config.write_text(yaml.safe_dump(tree))
    trained = subprocess.run(
        [sys.executable, "train.py", config], cwd=FOLDER, capture_output=True, text=True
    )
    assert trained.returncode == 0, trained.stderr
    assert "Validation MAE" in trained.stdout


@pytest.mark.slow
def test_the_test_of_the_example_passes():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_cosmoflow.py"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
