"""Small models, exported once, and a server that has them."""

import convoy
import keras
import pytest
from convoy import cpu
from convoy.serving.batching import BatchOptions
from convoy.serving.versions import ModelConfig, VersionPolicy
from tests.serving.models import CLASSES, classifier, half_plus
from tests.serving.running import running


@pytest.fixture(scope="session")
def half_plus_two(tmp_path_factory):
    """The folder of TensorFlow Serving's example, in two versions: plus two, and plus three."""
    folder = tmp_path_factory.mktemp("models") / "half"
    convoy.export(half_plus(2), folder, version=1, batch_sizes=[1, 4])
    convoy.export(half_plus(3), folder, version=123, batch_sizes=[1, 4])
    return folder


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """The folder of a classifier that takes images as bytes, and the model that it was made of."""
    keras.utils.set_random_seed(0)
    folder = tmp_path_factory.mktemp("models") / "pictures"
    model = classifier()
    convoy.export(
        model,
        folder,
        batch_sizes=[1, 4],
        class_names=CLASSES,
        preprocessing=keras.layers.Rescaling(1 / 255),
    )
    return folder, model


@pytest.fixture(scope="session")
def server(half_plus_two, pictures):
    models = [
        ModelConfig("half_plus_two", half_plus_two, VersionPolicy(latest=0), {"stable": 1}),
        ModelConfig("half_plus_three", half_plus_two),
        ModelConfig("pictures", pictures[0]),
    ]
    with running(models, batching=BatchOptions(max_enqueued_samples=64)) as started:
        yield started


@pytest.fixture
def portable(monkeypatch):
    """As on a machine without Convoy's kernels."""
    monkeypatch.setattr(cpu, "fuses", lambda platform: False)
