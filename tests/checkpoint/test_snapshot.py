"""States that a run cannot resume from are one line, before anything is trained."""

import shutil

import convoy
import keras
import pytest
from convoy.checkpoint import CheckpointError
from convoy.checkpoint.folder import Folder

from .crafted import deleting, rewrite, setting

pytestmark = pytest.mark.integration

CRAFTED = {
    "no random state": setting({}, "state", "random"),
    "words of another number": setting("00", "state", "random", "python", "words"),
    "words that are no numbers": setting("zz", "state", "random", "python", "words"),
    "a generator that does not exist": setting("Dice", "state", "random", "numpy", "bit_generator"),
    "no seed of Keras": setting("seed", "state", "random", "keras"),
    "no place": deleting("state", "place"),
    "a place without order": deleting("state", "place", "order"),
    "a negative place": setting(-1, "state", "place", "done"),
    "a place of another type": setting("1", "state", "place", "before"),
    "a place with more": setting(1, "state", "place", "more"),
    "a place behind the data": setting(10**9, "state", "place", "done"),
    "a best that is text": setting(
        [{"type": "Checkpoints", "state": {"best": "none"}}], "state", "callbacks"
    ),
    "an attribute of a callback": setting(
        [{"type": "EarlyStopping", "state": {"on_epoch_end": 1}}], "state", "callbacks"
    ),
    "arrays that do not exist": setting(
        [{"type": "EarlyStopping", "state": {"best_weights": {"arrays": "x", "count": 10**9}}}],
        "state",
        "callbacks",
    ),
}


@pytest.fixture(scope="module")
def interrupted(plain, tmp_path_factory):
    """The checkpoint of a run within its second epoch."""
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    plain.run(convoy.Checkpoints(folder, every=2, keep=9), epochs=2)
    positions = Folder(folder).positions()
    for position in positions[positions.index((1, 2)) + 1 :]:
        shutil.rmtree(folder / position.name)
    return folder


@pytest.mark.parametrize("change", CRAFTED.values(), ids=CRAFTED.keys())
def test_a_crafted_state_is_one_line(plain, interrupted, tmp_path, change):
    folder = shutil.copytree(interrupted, tmp_path / "run")
    position = Folder(folder).positions()[-1]
    rewrite(folder / position.name, change)
    stopping = keras.callbacks.EarlyStopping("loss", patience=9)
    with pytest.raises((CheckpointError, ValueError), match="checkpoint") as raised:
        plain.run(convoy.Checkpoints(folder), stopping, spoil=True)
    assert "\n" not in str(raised.value)
    assert Folder(folder).positions()[-1] == position
