import json
import os

import convoy
import jax
import pytest
from convoy.serving import artifact
from convoy.serving.errors import ArtifactError
from convoy.serving.servable import Servable
from convoy.serving.signature import TensorSpec
from tests.serving.models import CLASSES, half_plus


def test_a_version_says_what_it_is(pictures):
    found = artifact.read(pictures[0] / "1")
    assert found.signature.inputs == (TensorSpec("image", "uint8", (8, 8, 3)),)
    assert found.signature.outputs == (TensorSpec("output_0", "float32", (5,)),)
    assert found.class_names == CLASSES
    assert found.batch_sizes == (1, 4)
    assert found.about["versions"]["jax"] == jax.__version__


def test_weights_are_kept_once(pictures):
    found = artifact.read(pictures[0] / "1")
    names = [name for program in found.programs.values() for name in program.weights]
    assert len(found.weights) == len(set(names)) < len(names)
    # Two kernels with two biases in the convolutions' place, and the last layer.
    assert sum(value.size for value in found.weights.values()) == 216 + 8 + 576 + 8 + 40 + 5


def test_a_damaged_version_is_refused(tmp_path):
    path = convoy.export(half_plus(2), tmp_path, batch_sizes=[1])
    program = path / "program-1.stablehlo"
    data = bytearray(program.read_bytes())
    data[len(data) // 2] ^= 1
    program.write_bytes(data)
    with pytest.raises(ArtifactError, match="program-1\\.stablehlo is damaged"):
        Servable(path)
    (path / artifact.MANIFEST).write_text(json.dumps({"format": "else", "version": 1}))
    with pytest.raises(ArtifactError, match="has the format else, version 1"):
        Servable(path)
    with pytest.raises(ArtifactError, match="manifest\\.json is missing"):
        Servable(tmp_path)


def test_every_flipped_bit_of_a_manifest_is_noticed(tmp_path):
    path = convoy.export(half_plus(2), tmp_path, batch_sizes=[1])
    manifest = path / artifact.MANIFEST
    data = manifest.read_bytes()
    whole = json.loads(data)
    # White space between the values is not part of the content.
    places = [place for place in range(len(data)) if not data[place : place + 1].isspace()]
    for number, place in enumerate(places[:: max(1, len(places) // 300)]):
        flipped = bytearray(data)
        flipped[place] ^= 1 << number % 8
        manifest.write_bytes(flipped)
        try:
            same = json.loads(flipped) == whole
        except ValueError:
            same = False
        if not same:
            with pytest.raises(ArtifactError):
                artifact.read(path)
    manifest.write_bytes(data)
    artifact.read(path)


def rewritten(path, change):
    """Change a manifest as its author can: with the right checksum."""
    manifest = json.loads((path / artifact.MANIFEST).read_bytes())
    del manifest[artifact.CHECKSUM]
    change(manifest)
    manifest[artifact.CHECKSUM] = artifact._manifest_checksum(manifest)
    (path / artifact.MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["files"].update({"/etc/passwd": ""}), "'/etc/passwd' is not the name"),
        (lambda m: m["files"].update({"../x": ""}), r"'\.\./x' is not the name"),
        (lambda m: m["programs"].clear(), r"for the batch sizes \[\]"),
        (lambda m: m.update(files=3), "is damaged"),
        (lambda m: m.update(programs=[1]), "is damaged"),
        (
            lambda m: m["files"].pop("program-1.stablehlo"),
            r"has no checksum\. Export the model again",
        ),
        (lambda m: m["signature"]["inputs"][0].update(dtype="object"), "not an input or output"),
        (lambda m: m["signature"]["inputs"][0].update(shape=[-1]), "not an input or output"),
    ],
)
def test_a_crafted_manifest_is_refused(tmp_path, change, message):
    path = convoy.export(half_plus(2), tmp_path, batch_sizes=[1])
    rewritten(path, change)
    with pytest.raises(ArtifactError, match=message):
        artifact.read(path)


def test_a_version_of_an_earlier_convoy_is_read(tmp_path):
    path = convoy.export(half_plus(2), tmp_path, batch_sizes=[1])
    manifest = json.loads((path / artifact.MANIFEST).read_bytes())
    del manifest[artifact.CHECKSUM]
    manifest["version"] = 1
    (path / artifact.MANIFEST).write_text(json.dumps(manifest))
    assert artifact.read(path).batch_sizes == (1,)
    manifest["version"] = 2
    (path / artifact.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=r"manifest\.json is damaged: its checksum is wrong"):
        artifact.read(path)


def test_a_pipe_in_place_of_a_file_is_not_read(tmp_path):
    path = convoy.export(half_plus(2), tmp_path, batch_sizes=[1])
    (path / artifact.WEIGHTS).unlink()
    os.mkfifo(path / artifact.WEIGHTS)
    with pytest.raises(ArtifactError, match=r"weights\.safetensors is not a file"):
        artifact.read(path)
