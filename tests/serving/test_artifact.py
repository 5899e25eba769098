import json

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
