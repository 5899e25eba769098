"""Files that commit ed3144e wrote are loaded by public names, and give the numbers of that time.

`write_fixtures.py` has made the files. Add fixtures when a format changes; do not replace them.
"""

import csv
import importlib
import json
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import convoy
import keras
import numpy as np
import pytest
from convoy import ipu
from tests.equivalence.side_by_side import ATOL, RTOL

from . import subjects
from .subjects import FIXTURES, HERE, VARIANTS, command

OPTIMIZERS = ("LARS", "Lookahead", "Regularized")
"""The classes that Keras finds after `import convoy`."""
OTHERS = (
    *("CaptureActivationGradients", "CaptureUpstreamGradients", "Constant", "Cosine", "Decompress"),
    *("Dirac", "MaskWarmUp", "MeanOfViews", "Offset", "Polynomial", "Preprocess", "ShiftWarmUp"),
    *("SmoothedCrossentropy", "Staircase", "Stepped", "Subsample", "SyntheticImages"),
    *("UpdateBatchNormalization", "Views", "WarmUpAndDecay", "Whiten"),
)
"""The classes that Keras finds once the module that defines them is imported."""
SCHEDULES = ("constant", "cosine", "stepped", "polynomial", "volumes")


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """All fixtures, unpacked. Tests that write work on a copy."""
    folder = tmp_path_factory.mktemp("fixtures")
    for archive in FIXTURES.glob("*.tar.xz"):
        name = archive.name.removesuffix(".tar.xz")
        shutil.unpack_archive(archive, folder / name, filter="data")
    return folder


@pytest.fixture
def copied(originals, tmp_path):
    def copy(name):
        return Path(shutil.copytree(originals / name, tmp_path / name))

    return copy


@pytest.fixture(scope="module")
def registered():
    """Import the modules that register classes, whatever they are called."""
    example = HERE.parents[1] / "examples/cosmoflow"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(example))
        for root in (Path(convoy.__file__).parent, example / "cosmoflow"):
            for file in sorted(root.rglob("*.py")):
                if "register_keras_serializable" in file.read_text():
                    parts = file.relative_to(root.parent).with_suffix("").parts
                    importlib.import_module(".".join(parts))


def assert_expected(found, name, tolerance=None):
    with np.load(FIXTURES / "expected" / f"{name}.npz") as stored:
        expected = dict(stored)
    assert sorted(found) == sorted(expected)
    rtol, atol = (tolerance, tolerance) if tolerance else (RTOL, ATOL)
    for key, values in expected.items():
        assert np.shape(found[key]) == values.shape, key
        np.testing.assert_allclose(found[key], values, rtol=rtol, atol=atol, err_msg=key)


# Checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_resumes_from_a_checkpoint_in_the_middle_of_an_epoch(copied, name):
    variant = VARIANTS[name]
    folder = copied(f"checkpoints/{name}")
    model = subjects.make(variant)
    for variable in model.trainable_variables:
        variable.assign(np.ones(variable.shape))  # the checkpoint's values count
    best = "min:val_loss" if name == "plain" else None
    checkpoints = convoy.Checkpoints(folder, every=4, keep=1, best=best)
    found = subjects.train(model, variant, checkpoints)
    assert_expected(found, f"checkpoints-{name}", variant.tolerance)


def test_the_command_lists_and_converts_checkpoints(originals, tmp_path):
    folder = originals / "checkpoints"
    newest = "epoch-0001-step-00000002"
    listed = command("checkpoint", "list", folder / "plain").splitlines()
    assert [line.split()[0] for line in listed] == ["epoch-0001-step-00000000", newest]
    assert "best" in listed[0]
    command("checkpoint", "convert", folder / "wrapped", tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(model.optimizer, convoy.optimizers.Lookahead)
    assert int(model.optimizer.iterations) == 8


# `convoy train` -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_training_run_resumes_and_validates_the_checkpoints_of_before(copied):
    folder = copied("train")
    command("train", "--resume", "--output-dir", folder)
    with (folder / "metrics.csv").open() as file:
        found = list(csv.DictReader(file))
    expected = json.loads((FIXTURES / "expected" / "train.json").read_text())
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        for name in ("phase", "update", "epoch"):
            assert row[name] == wanted[name]
        for name in ("loss", "accuracy", "learning_rate"):
            close = pytest.approx(float(wanted[name] or 0), rel=RTOL, abs=ATOL)
            assert float(row[name] or 0) == close, (name, wanted)


# Keras files --------------------------------------------------------------------------------


def test_registered_names_are_kept(registered):
    for name in (*OPTIMIZERS, *OTHERS):
        assert keras.saving.get_registered_object(f"convoy>{name}") is not None, name


def test_a_plain_import_registers_the_optimizers(originals):
    code = (
        "import sys, convoy, keras\n"
        "for path in sys.argv[1:]:\n"
        "    print(type(keras.saving.load_model(path).optimizer).__name__)\n"
    )
    paths = [originals / "keras" / f"{name}.keras" for name in ("lars", "wrapped")]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)],
        env=subjects.environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["LARS", "Lookahead"]


@pytest.mark.parametrize("name", ["lars", "wrapped", "captured"])
def test_a_model_with_optimizers_or_wrappers_of_the_public_modules_trains_on(originals, name):
    model = subjects.load(originals / "keras" / f"{name}.keras")
    assert_expected(subjects.train_on(model), f"keras-{name}")


def test_layers_of_the_package_are_loaded(originals, registered):
    model = keras.saving.load_model(originals / "keras" / "layers.keras")
    predicted = model.predict(subjects.image_bytes(), verbose=0)
    assert_expected({"predicted": predicted}, "keras-layers")


def test_synthetic_images_are_loaded(originals, registered):
    model = subjects.load(originals / "keras" / "synthetic.keras")
    predicted = model.predict(np.zeros(3, "int32"), verbose=0)
    assert_expected({"predicted": predicted}, "keras-synthetic")


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_and_the_loss_are_loaded(originals, registered, name):
    model = keras.saving.load_model(originals / "keras" / f"schedule-{name}.keras")
    x, y = np.ones((4, 2), "float32"), np.arange(4) % 3
    loss = np.array(model.evaluate(x, y, verbose=0))
    assert_expected({"rates": subjects.rates(model), "loss": loss}, f"keras-schedule-{name}")


# `convoy.ipu` -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "staged"])
def test_a_model_is_loaded_with_its_ipu_options(originals, name):
    try:
        with subjects.ipu_strategy().scope():
            model = keras.saving.load_model(originals / "ipu" / f"{name}.keras")
            found = subjects.train_ipu(model)
    finally:
        ipu.config.reset_ipu_configuration()
    assert_expected(found, f"ipu-{name}")


# Estimators ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "staged"])
def test_an_estimator_goes_on_from_its_folder(copied, kind):
    trained = subjects.estimator(kind, copied(f"estimators/{kind}"))
    assert_expected(subjects.estimated(trained), f"estimators-{kind}-before")
    assert_expected(subjects.train_estimator(trained), f"estimators-{kind}-after")


# Exports ------------------------------------------------------------------------------------


@contextmanager
def serving(**models):
    """Run `convoy serve`; yields its address."""
    words = [word for name, path in models.items() for word in ("--model", f"{name}={path}")]
    server = subprocess.Popen(
        [
            *(Path(sys.executable).parent / "convoy", "serve", *words),
            *("--port", "0", "--grpc-port", "-1", "--poll-seconds", "0"),
        ],
        cwd=HERE,
        env=subjects.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = []
    reader = threading.Thread(target=lambda: said.extend(server.stderr))
    reader.start()
    try:
        address = re.search(r"http://[\d.]+:\d+", server.stdout.readline())
        if address is None:
            server.wait(20)
            reader.join()
            pytest.fail("".join(said))
        yield address[0]
    finally:
        server.terminate()
        server.wait(20)
        reader.join()
        server.stdout.close()
        server.stderr.close()


def predict(address, name, samples):
    body = json.dumps({"instances": samples.tolist()}).encode()
    request = urllib.request.Request(f"{address}/v1/models/{name}:predict", body)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return np.array(json.load(answer)["predictions"])


@pytest.mark.slow
def test_exported_versions_are_served(originals):
    names = ("convoy", "portable", "train", "layers")
    x = {"convoy": subjects.images()[0][:4], "portable": subjects.images()[0][:4]}
    with serving(**{name: originals / "exports" / name for name in names}) as address:
        for name in names:
            predicted = predict(address, name, x.get(name, subjects.image_bytes()))
            assert_expected({"predicted": predicted}, f"exports-{name}")


def test_the_keras_models_in_exported_versions_are_loaded(originals, registered):
    for name in ("train", "layers"):
        file = originals / "exports" / name / "1" / "model.keras"
        model = keras.saving.load_model(file, compile=False)
        predicted = model.predict(subjects.image_bytes(), verbose=0)
        assert_expected({"predicted": predicted}, f"exports-{name}")


@pytest.mark.slow
@pytest.mark.parametrize("source", ["train", "keras/layers.keras"], ids=["run", "file"])
def test_runs_and_keras_files_are_exported(originals, tmp_path, source):
    words = ("--checkpoint", originals / source, "--export-dir", tmp_path / "model")
    command("export", *words, "--batch-sizes", "1")
    manifest = json.loads((tmp_path / "model" / "1" / "manifest.json").read_text())
    assert manifest["format"] == "convoy-model"


# Reports ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_page_and_a_trace_are_made_of_a_report(originals, tmp_path):
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    command("report", originals / "report", "--page", page, "--trace", trace)
    events = json.loads(trace.read_text())["traceEvents"]
    spans = sorted((event["ts"], event["dur"]) for event in events if event["ph"] == "X")
    assert_expected({"spans": np.array(spans)}, "report")
    assert page.stat().st_size > 10_000
