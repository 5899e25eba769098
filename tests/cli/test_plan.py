import csv
import re

import convoy
import keras
import pytest
import yaml
from convoy.cli import plan
from convoy.cli.train import parse
from convoy.compile import toolchain
from convoy.plan import machine as machines
from convoy.plan.output import training_command, training_flags
from convoy.plan.predict import ParallelConfiguration, Predictor
from convoy.train.models import find_model
from convoy.train.run_settings import make_run_settings
from convoy_command.cli import main
from tests import parts
from tests.plan.networks import chain, machine

pytestmark = pytest.mark.integration

ELSEWHERE = ("--device-flops", "1T", "--device-bandwidth", "100GB/s", "--link", "10GB/s")
SMALL = ("--model", "cifar_resnet8", "--global-batch", "512", "--memory", "1GB")


def run(*words):
    return main(["plan", *words])


def test_the_best_few_come_with_their_recipe_and_a_picture(capsys, tmp_path):
    table = tmp_path / "all.csv"
    assert run(*SMALL, "--devices", "2", *ELSEWHERE, "--best", "3", "--csv", str(table)) == 0
    shown, told = capsys.readouterr()
    assert told.splitlines()[0] == "making cifar_resnet8 ..."
    assert told.splitlines()[-1] == "comparing configurations of 2 devices ..."
    assert "costs       estimated from 1,000 GFLOP/s and 100 GB/s of a device" in shown
    lines = shown.splitlines()
    head = next(number for number, line in enumerate(lines) if "samples/s" in line)
    first = lines[head + 1].split()
    assert first[:2] == ["2", "1"]
    assert not lines[head + 4]
    (found,) = re.findall(r"convoy train (.*)", shown)
    planned = make_run_settings(parse(found.split()))
    assert planned.batch.replicas == 2
    assert planned.batch.global_batch == 512
    (text,) = re.findall(r"^(cifar_resnet8_2:\n(?:  .*\n)+)", shown, re.MULTILINE)
    assert yaml.safe_load(text)["cifar_resnet8_2"]["num-replicas"] == 2
    assert "exchange update" in lines[-1]
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert all(float(row["ms/update"]) > 0 < float(row["samples/s"]) for row in rows)
    assert {row["schedule"] for row in rows} == {"-", "1f1b", "gpipe", "zero-bubble"}


def test_several_numbers_of_devices_make_a_table_and_a_page(capsys, tmp_path):
    page = tmp_path / "page.md"
    counts = ("--devices", "16", "4096", "--page", str(page))
    assert run(*SMALL, *counts, *ELSEWHERE) == 0
    assert "network     3.12 GB/s and 30 us" in capsys.readouterr().out
    text = page.read_text()
    assert "| 16 | 1 |" in text
    assert "Predicted, not run." in text
    assert "| 4096 | 256 |" in text


def test_it_is_said_when_nothing_fits(capsys):
    words = ("--model", "cifar_resnet8", "--global-batch", "64", "--memory", "100kB")
    assert run(*words, "--devices", "2", *ELSEWHERE) == 1
    shown = capsys.readouterr().out
    assert re.search(
        r"Nothing fits into 0.0001 GB: of \d+ configurations, the smallest takes .*"
        r"\(1 replica x 2 stages",
        shown,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--devices", "0"), "--devices 0: pass 1 or more."),
        (
            ("--devices", "2", "--memory", "much"),
            "'much' is not a size. Pass for example 8GB or 512MiB",
        ),
        (("--devices", "2", "--memory", "8"), "--memory: 8 has no unit. Pass for example 8GB"),
        (("--devices", "2", "--model", "resnet5000"), "'resnet5000' is not a model. Did you mean"),
        (
            ("--devices", "2", "--measure", *ELSEWHERE),
            "--measure times the devices of this",
        ),
        ((), "--devices is missing. Pass a number of devices, or a --target."),
        (("--target", "tpu:v5e:2x2"), "has its own memory. Leave --memory out"),
    ],
)
def test_what_cannot_be_planned_is_one_line(capsys, words, message):
    status = 0
    try:
        status = run(*SMALL, *words)
    except SystemExit as stopped:
        status = stopped.code
    assert status == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_missing_model_is_answered_with_some(capsys):
    assert main(["plan", "--devices", "2"]) == 2
    assert capsys.readouterr().err == (
        "convoy plan: error: --model is missing. Pass for example cifar_resnet8, resnet50, "
        "MobileNetV2.\n"
    )
    for name in plan.EXAMPLES:
        find_model(name)


def test_several_hosts_are_launched():
    one = ParallelConfiguration(8, 4, 2, 8, "zero-bubble", True)
    predictor = Predictor(chain(), machine(32, per_host=8), 1)
    found = training_flags(predictor.predict(one), predictor.profile, {"model": "toy_model"})
    assert training_command(predictor.predict(one), found, predictor.machine) == (
        "convoy launch --num-instances 4 --num-replicas 8 --devices-per-replica 4 "
        "examples/cnns/train.py --model toy_model --num-replicas 8 --micro-batch-size 2 "
        "--gradient-accumulation 8 --pipeline-splits layer1 layer2 layer3 "
        "--pipeline-schedule zero-bubble --activation-checkpointing"
    )


def test_the_cuts_are_layers_that_a_model_can_be_split_at(capsys):
    words = ("--model", "cifar_resnet8", "--global-batch", "64", "--memory", "1.4MB")
    assert run(*words, "--devices", "2", *ELSEWHERE) == 0
    (found,) = re.findall(r"--pipeline-splits ([^-]*) --", capsys.readouterr().out)
    keras.backend.clear_session(free_memory=False)
    from convoy.train.models import make_model

    model = convoy.prepare(make_model("cifar_resnet8", (32, 32, 3), 10))
    convoy.split(model, found.split())


def test_a_small_model_is_measured(capsys, monkeypatch):
    monkeypatch.setattr(machines, "SECONDS", 0.0)
    monkeypatch.setattr(machines, "BYTES", 1 << 16)
    words = ("--model", "toy_model", "--global-batch", "8", "--memory", "1GB")
    assert run(*words, "--devices", "2", "--measure") == 0
    shown = capsys.readouterr()
    assert "costs       measured on 2 x cpu at once, micro-batches of 4" in shown.out
    assert "measuring a whole step, 4 samples ..." in shown.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--target", "tpu:v5:2x2"), "'v5' is not one of v5e, v5p, v6e. Did you mean v5e"),
        (("--target", "tpv:v5e:2x2"), "gpu:h100:8. Did you mean tpu:v5e:2x2?"),
        (("--target", "h100:8"), "gpu:h100:8. Did you mean gpu:h100:8?"),
        (
            ("--target", "cpu"),
            "--target cpu is not a target. Pass a platform, a kind and a number of devices, such",
        ),
        (("--target", "tpu:v5e:2x2", "--measure"), "has its own measure. Leave --measure out"),
        (
            ("--target", "tpu:v5e:2x2", "--precision", "32.32"),
            "--precision 32.32: the speeds of a target are those of 16 bits. Pass for example",
        ),
    ],
)
def test_a_target_that_cannot_be_planned_is_one_line(capsys, words, message):
    words = ("--model", "cifar_resnet8", "--global-batch", "512", "--precision", "bf16.32", *words)
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_missing_compiler_is_one_line(capsys, monkeypatch):
    def version(name):
        raise toolchain.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(toolchain.metadata, "version", version)
    words = ("--model", "cifar_resnet8", "--global-batch", "512", "--precision", "bf16.32")
    assert run(*words, "--target", "gpu:h100:8") == 2
    error = capsys.readouterr().err
    assert "needs the package jax-cuda12-plugin, which is not installed. Install it with" in error
    assert error.count("\n") == 1


@pytest.mark.targets
@parts.needs("libtpu")
def test_memory_and_work_come_from_compiled_programs(capsys):
    words = ("--model", "cifar_resnet8", "--global-batch", "512", "--precision", "bf16.32")
    assert run(*words, "--target", "tpu:v5e:2x2", "--best", "3") == 0
    shown = capsys.readouterr().out
    compiled = re.findall(
        r"compiled for tpu:v5e:2x2: 4 x 1 stage, micro-batch (\d+): ([\d.]+) GB of 16.9 GB", shown
    )
    assert compiled
    assert "costs       memory and work compiled for tpu:v5e:2x2, micro-batches of" in shown
    assert "200 GB/s all-reduce on a host" in shown
    lines = shown.splitlines()
    head = next(number for number, line in enumerate(lines) if "samples/s" in line)
    best = dict(zip(lines[head].split(), lines[head + 1].split(), strict=True))
    # The first row is one that was compiled.
    assert (best["micro-batch"], best["GB/device"]) in compiled
