"""A bounded part of `make fuzz`: damaged and crafted checkpoints and exported versions."""

import convoy
import pytest
from tests.serving.models import half_plus

from .files import ArtifactFuzz, CheckpointFuzz
from .run import train

pytestmark = pytest.mark.integration

COUNT = 150


def check(fuzz):
    for _ in range(COUNT):
        fuzz.run_one()
    assert not fuzz.faults, fuzz.faults[0]
    assert min(fuzz.outcomes["read"], fuzz.outcomes["refused"]) > 10


def test_checkpoints_are_read_or_refused_in_one_line(tmp_path):
    original = train(tmp_path / "run")
    check(CheckpointFuzz(original, tmp_path, seed=0))


def test_exported_versions_are_read_or_refused_in_one_line(tmp_path):
    convoy.export(half_plus(2), tmp_path / "half", batch_sizes=[1])
    check(ArtifactFuzz(tmp_path / "half" / "1", tmp_path, seed=0))
