"""A server with default settings goes on serving others, whatever one client or version does."""

import base64
import io
import json
import os
import shutil
from pathlib import Path

import convoy
import keras
import numpy as np
import pytest
from convoy.serving import artifact
from convoy.serving import tensorflow_serving_pb2 as messages
from PIL import Image
from tests.serving.bad_files import CALLBACK, picture, png, with_custom_call
from tests.serving.models import half_plus
from tests.serving.processes import OtherClient, serving, wait_for, waits

pytestmark = pytest.mark.integration

# Others may wait this many times as long as the longest of their quiet requests. Before there were
# limits, the factor was in the hundreds, or there was no answer.
MAX_SLOWDOWN = 20
ATTACKS = 5
# An attack may take this much memory at its peak.
MAX_MEGABYTES = 400


def four():
    x = keras.Input((4,), name="x")
    return keras.Model(x, keras.layers.Rescaling(2.0)(x))


def wide():
    x = keras.Input((20_000,), name="x")
    return keras.Model(x, keras.ops.mean(x, axis=1))


def long():
    x = keras.Input((1,), name="x")
    return keras.Model(x, keras.layers.RepeatVector(500_000)(x))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacked")
    models = {"half": half_plus(2), "four": four(), "wide": wide(), "long": long()}
    models |= {"pictures": picture(), "rolled": half_plus(1)}
    for name, model in models.items():
        convoy.export(model, folder / name, batch_sizes=[1, 4])
    # A stand-in for Ghostscript tells if it is started.
    programs = folder / "bin"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {folder}/gs-was-started\n")
    (programs / "gs").chmod(0o755)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{programs}:{path}"
    try:
        with serving(folder, **{name: folder / name for name in models}) as started:
            started.folder = folder
            yield started
    finally:
        os.environ["PATH"] = path


def one_value(model, shape):
    """A request with one value that claims a shape."""
    request = messages.PredictRequest()
    request.model_spec.name = model
    tensor = request.inputs["x"]
    tensor.dtype = 1
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.append(1.0)
    return request.SerializeToString()


def check_attack(server, attack):
    """Check that others are served during an attack, and how much memory it takes.

    Other programs on the machine can delay every request, with and without an attack, and only add
    to the times. So several attacks are measured, and the shortest times are compared: an attack
    that slows the server down does so each time, and a quiet time that was disturbed does not hide
    it.
    """
    before = server.peak_megabytes()
    quiet, attacked = zip(*(waits(server, attack) for _ in range(ATTACKS)), strict=True)
    assert min(attacked) < MAX_SLOWDOWN * min(quiet)
    assert server.peak_megabytes() - before < MAX_MEGABYTES


@pytest.mark.parametrize("samples", [1_000_000, 67_108_864])
def test_a_value_that_claims_millions_of_samples(server, samples):
    request = one_value("four", [samples, 4])
    assert len(request) < 50

    def attack():
        code, details = server.grpc("Predict", request)
        assert code == "INVALID_ARGUMENT"
        assert f"{samples} samples" in details

    check_attack(server, attack)


@pytest.mark.parametrize("samples", [150_000, 1_000_000])
def test_millions_of_samples_as_binary_data(server, samples):
    data = np.zeros((samples, 4), np.float32).tobytes()
    tensor = {"name": "x", "shape": [samples, 4], "datatype": "FP32"}
    tensor["parameters"] = {"binary_data_size": len(data)}
    header = json.dumps({"inputs": [tensor]}).encode()

    def attack():
        status, _ = server.post(
            "/v2/models/four/infer",
            header + data,
            **{"Inference-Header-Content-Length": str(len(header))},
        )
        assert status == 413

    check_attack(server, attack)


def test_a_text_of_millions_of_empty_lists(server):
    body = b'{"instances": [' + b"[]," * 20_000_000 + b"[]]}"

    def attack():
        assert server.post("/v1/models/four:predict", body)[0] == 413

    check_attack(server, attack)


def test_a_long_text_that_is_valid(server):
    row = b"[" + b",".join([b"0.5"] * 20_000) + b"]"
    body = b'{"instances": [' + b",".join([row] * 50) + b"]}"

    def attack():
        assert server.post("/v1/models/wide:predict", body)[0] == 200

    check_attack(server, attack)


@pytest.mark.slow
def test_a_long_text_of_short_lists(server):
    body = b'{"instances": [' + b",".join([b"[0.5]"] * 1_000_000) + b"]}"

    def attack():
        assert server.post("/v1/models/wide:predict", body)[0] == 413

    check_attack(server, attack)


@pytest.mark.slow
def test_a_long_text_that_is_damaged_at_its_end(server):
    body = b'{"instances": [[' + b",".join([b"0.5"] * 2_000_000) + b"?"

    def attack():
        assert server.post("/v1/models/wide:predict", body)[0] == 400

    check_attack(server, attack)


@pytest.mark.slow
def test_a_long_text_of_another_type(server):
    body = b'{"instances": {"x": [' + b",".join([b"0.5"] * 2_000_000) + b"]}}"

    def attack():
        assert server.post("/v1/models/wide:predict", body)[0] == 400

    check_attack(server, attack)


def test_a_long_message_that_is_valid(server):
    request = messages.PredictRequest()
    request.model_spec.name = "wide"
    tensor = request.inputs["x"]
    tensor.dtype = 1
    for size in (50, 20_000):
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.extend([0.5] * 1_000_000)
    data = request.SerializeToString()

    def attack():
        assert server.grpc("Predict", data)[0] == "OK"

    check_attack(server, attack)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_a_long_answer(server, protocol):
    def attack():
        if protocol == "rest":
            assert server.post("/v1/models/long:predict", {"instances": [[0.3]]})[0] == 200
        else:
            assert server.grpc("Predict", one_value("long", [1, 1]))[0] == "OK"

    check_attack(server, attack)


def as_json(*files):
    return {"instances": [{"b64": base64.b64encode(file).decode()} for file in files]}


def as_message(*files):
    request = messages.PredictRequest()
    request.model_spec.name = "pictures"
    tensor = request.inputs["image"]
    tensor.dtype = 7
    tensor.tensor_shape.dim.add(size=len(files))
    tensor.string_val.extend(files)
    return request.SerializeToString()


def test_a_small_file_with_millions_of_pixels(server):
    file = png(1, 50_000_000, 10)
    assert len(file) < 128

    def attack():
        assert server.post("/v1/models/pictures:predict", as_json(file))[0] == 413
        assert server.grpc("Predict", as_message(file))[0] == "INVALID_ARGUMENT"

    check_attack(server, attack)


@pytest.mark.slow
def test_a_large_file_as_text(server):
    pixels = np.random.default_rng(0).integers(0, 256, (3000, 3000, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=0)
    body = json.dumps(as_json(file.getvalue())).encode()
    assert len(body) > 30_000_000

    def attack():
        assert server.post("/v1/models/pictures:predict", body)[0] == 200

    check_attack(server, attack)


def test_large_images(server):
    file = io.BytesIO()
    Image.new("RGB", (7000, 7000)).save(file, "PNG")
    twenty, one = as_message(*20 * [file.getvalue()]), as_message(file.getvalue())

    def attack():
        assert server.grpc("Predict", twenty)[0] == "INVALID_ARGUMENT"
        assert server.grpc("Predict", one)[0] == "OK"

    check_attack(server, attack)


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_an_image_that_is_cut_short_is_refused(server, protocol):
    whole = png(100, 100, 100)
    short = {"data": png(100, 100, 99), "file": whole[: len(whole) - 20]}
    for file in short.values():
        if protocol == "rest":
            status, body = server.post("/v1/models/pictures:predict", as_json(file))
            assert (status, b"cut short" in body) == (400, True)
        else:
            code, details = server.grpc("Predict", as_message(file))
            assert (code, "cut short" in details) == ("INVALID_ARGUMENT", True)
    assert server.post("/v1/models/pictures:predict", as_json(whole))[0] == 200


def test_an_image_cannot_start_a_program(server):
    file = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    status, body = server.post("/v1/models/pictures:predict", as_json(file))
    assert (status, b"JPEG, PNG" in body) == (400, True)
    assert not (server.folder / "gs-was-started").exists()


def test_bad_versions_do_not_hold_up_good_ones(server, tmp_path):
    rolled, half = server.folder / "rolled", server.folder / "half"
    # One that would crash the compiler.
    with_custom_call(tmp_path / "crash", rolled / "1")
    (tmp_path / "crash").rename(rolled / "2")
    assert CALLBACK in wait_for(server, "rolled", 2, "END")
    # One that would block, and one that is copied slowly.
    good = convoy.export(half_plus(5), tmp_path / "good", batch_sizes=[1])
    shutil.copytree(good, rolled / "3")
    (rolled / "3" / artifact.WEIGHTS).unlink()
    os.mkfifo(rolled / "3" / artifact.WEIGHTS)
    assert "is not a file" in wait_for(server, "rolled", 3, "END")
    (rolled / "4").mkdir()
    shutil.copy(good / artifact.MANIFEST, rolled / "4")
    assert wait_for(server, "rolled", 4, "END")
    with OtherClient(server, "/v1/models/rolled:predict", [1.5]) as other:
        other.request()
        # A good version of another model is loaded nevertheless, then the copied one.
        convoy.export(half_plus(2), half, batch_sizes=[1])
        wait_for(server, "half", 2, "AVAILABLE")
        for file in Path(good).iterdir():
            shutil.copy(file, rolled / "4")
        wait_for(server, "rolled", 4, "AVAILABLE")
        assert not other.failures
        other.answer = [5.5]
        other.request()
        assert not other.failures


def test_a_stop_after_all_that(server):
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()
