"""Image files, from the command line to a validated model."""

import csv
import os
import signal

import pytest
from tests.data.pictures import write_folders

pytestmark = pytest.mark.integration

IMAGENET = (
    *("--dataset", "imagenet", "--dataset-path", "images", "--micro-batch-size", 4),
    *("--precision", "32.32", "--seed", 2, "--pipeline-num-parallel", 0),
)
ON_DEVICE = ("--eight-bit-transfer", "--accelerator-side-preprocess")


@pytest.fixture
def images(tmp_path):
    return write_folders(tmp_path / "images")


def rows(folder):
    with (folder / "metrics.csv").open() as file:
        return [
            {k: v for k, v in row.items() if k not in ("throughput", "compilation")}
            for row in csv.DictReader(file)
        ]


def test_trains_and_validates_on_image_files(application, images, tmp_path):
    bad = images / "train" / "n01" / "n01_0.JPEG"
    bad.write_bytes(bad.read_bytes()[:-300])
    words = (*IMAGENET, *ON_DEVICE, "--num-epochs", 2, "--output-dir", "run")
    done = application(*words, data=False)
    assert done.status == 0, done.err
    assert [row["update"] for row in rows(tmp_path / "run")] == ["3", "6", "3", "6"]
    assert (
        done.err.count(f"skipped {os.path.join('images', 'train', 'n01', 'n01_0.JPEG')}: it") == 1
    )
    assert "1 damaged image skipped; others were used instead." in done.err


@pytest.mark.slow
def test_a_damaged_image_stops_a_run_if_asked(application, images):
    bad = images / "train" / "n01" / "n01_0.JPEG"
    bad.write_bytes(bad.read_bytes()[:-300])
    words = (*IMAGENET, *ON_DEVICE, "--pipeline-num-parallel", 1, "--damaged-images", "stop")
    stopped = application(*words, data=False)
    assert stopped.status == 2
    assert "n01_0.JPEG: it is a JPEG that ends before its last pixel." in stopped.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset-path", "nowhere"], "--dataset-path nowhere: there is no such folder"),
        (["--dataset-path", "."], "has no images of the train split"),
        (["--pipeline-num-parallel", "-1"], "--pipeline-num-parallel -1: pass 0 or more"),
    ],
)
def test_what_is_missing_is_one_line(application, tmp_path, words, message):
    done = application("--dataset", "imagenet", *words, data=False)
    assert done.status == 2
    assert message in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--accelerator-side-preprocess"],
        ["--mixup", 0.2],
        ["--augment", False],
        ["--flip", "alternating"],
    ],
    ids=str,
)
def test_flags_work_on_image_files(application, images, words):
    workers = ("--pipeline-num-parallel", 1)
    done = application(*IMAGENET, *workers, "--weight-updates-per-epoch", 2, *words, data=False)
    assert done.status == 0, done.err


@pytest.mark.slow
def test_a_run_on_worker_processes_goes_on_to_the_same_end(
    application, images, tmp_path, monkeypatch
):
    def leave(self, record):
        if record.update == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    words = (*IMAGENET, *ON_DEVICE, "--num-epochs", 3, "--logs-per-epoch", 3)
    words += ("--pipeline-num-parallel", 1, "--output-dir")
    assert application(*words, "a", data=False).status == 0
    with monkeypatch.context() as patch:
        patch.setattr("convoy.train.progress_callback.ProgressCallback._show", leave)
        assert application(*words, "b", data=False).status == 75
    done = application(*words, "b", "--resume", "--pipeline-num-parallel", 0, data=False)
    assert done.status == 0, done.err
    assert rows(tmp_path / "b") == rows(tmp_path / "a")


@pytest.mark.slow
def test_bench_measures(images, tmp_path, monkeypatch, capsys):
    from convoy.train import input_benchmark
    from convoy_command import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(input_benchmark, "SECONDS", 0.2)
    assert (
        cli.main(
            ["data", "bench", *map(str, (*IMAGENET, *ON_DEVICE, "--pipeline-num-parallel", 1))]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert float(said.split("Throughput = ")[1].split(" examples/sec")[0]) > 0
