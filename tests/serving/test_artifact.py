import json
import os
import resource

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


NAMES = (artifact.MANIFEST, artifact.WEIGHTS, artifact.EXAMPLE, artifact.MODEL)


@pytest.mark.parametrize("name", [*NAMES, "program-1.stablehlo"])
@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_to_a_file_outside_is_refused(tmp_path, name, absolute):
    path = convoy.export(half_plus(2), tmp_path / "half", batch_sizes=[1])
    outside = (path / name).rename(tmp_path / "outside")
    (path / name).symlink_to(outside if absolute else f"../../{outside.name}")
    with pytest.raises(ArtifactError, match=r"is a link to .*outside, which is not in .*half/1"):
        artifact.read(path)


def test_a_version_may_be_a_link_and_contain_links(tmp_path):
    path = convoy.export(half_plus(2), tmp_path / "stored", batch_sizes=[1])
    # As in a volume of Kubernetes: all names are links to a folder that is replaced as a whole.
    (path / "..2026_11_19").mkdir()
    (path / "..data").symlink_to("..2026_11_19")
    for file in [entry for entry in path.iterdir() if entry.is_file()]:
        file.rename(path / "..data" / file.name)
        file.symlink_to(f"..data/{file.name}")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "1").symlink_to(path)
    read = artifact.read(artifact.versions_in(tmp_path / "half")[1])
    assert read.batch_sizes == (1,)
    assert read.keras_file is not None


def test_a_keras_file_that_the_manifest_does_not_list_is_not_used(tmp_path):
    path = convoy.export(half_plus(2), tmp_path, batch_sizes=[1])
    assert artifact.read(path).keras_file == path / artifact.MODEL
    rewritten(path, lambda manifest: manifest["files"].pop(artifact.MODEL))
    assert artifact.read(path).keras_file is None
    (path / artifact.MODEL).unlink()
    os.mkfifo(path / artifact.MODEL)
    assert artifact.read(path).keras_file is None


def test_too_many_open_files_are_no_damage(tmp_path):
    path = convoy.export(half_plus(2), tmp_path, batch_sizes=[1])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(path, os.O_RDONLY)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        with pytest.raises(artifact.UnreadableError, match="Too many open files"):
            artifact.read(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    (path / artifact.WEIGHTS).unlink()
    with pytest.raises(ArtifactError, match=r"weights\.safetensors cannot be read") as error:
        artifact.read(path)
    assert not isinstance(error.value, artifact.UnreadableError)
