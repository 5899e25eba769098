"""A run that was stopped and goes on is the same run, bit for bit."""

import resource
import warnings

import convoy
import grain
import keras
import numpy as np
import pytest
from convoy.checkpoint import CheckpointError, store
from convoy.checkpoint.folder import Folder, Position
from keras import layers

from .conftest import SAMPLES, StopAt, StopError, Subject, fill

pytestmark = pytest.mark.integration

# Mid-epoch, before the last device call, before validation, and at the start of an epoch.
POINTS = [(0, 2), (0, 4), (1, np.inf), (2, 0), (2, 4)]


def hash_of(folder):
    folder = Folder(folder)
    return store.state_hash(store.read_manifest(folder.at(folder.positions()[-1])))


def assert_resumes_exactly(subject, tmp_path, points=POINTS, extra=list, **settings):
    def callbacks(folder):
        return lambda: [*extra(), convoy.Checkpoints(tmp_path / folder, every=2)]

    expected = subject.run(*callbacks("whole")(), **settings)
    actual = subject.stop_and_go_on(callbacks("pieces"), points, **settings)
    assert actual[:2] == expected[:2]
    assert actual[2] == expected[2]
    assert hash_of(tmp_path / "pieces") == hash_of(tmp_path / "whole")


def test_resumes_at_every_kind_of_point(plain, tmp_path):
    assert_resumes_exactly(plain, tmp_path)


@pytest.mark.parametrize(
    "strategy",
    [
        {"precision": "mixed_bfloat16"},
        {"precision": "bfloat16", "stochastic_rounding": "on", "devices": 2},
        pytest.param({"precision": "mixed_float16", "loss_scale": "auto"}, marks=pytest.mark.slow),
        pytest.param(
            {"precision": "float16", "stochastic_rounding": "on", "gradient_accumulation": 2},
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_resumes_exactly_in_16_bits(tmp_path, strategy):
    subject = Subject(batch=4, optimizer=keras.optimizers.SGD(0.05, momentum=0.9), **strategy)
    assert_resumes_exactly(subject, tmp_path, POINTS[1:4])


def test_checkpoints_change_nothing_about_a_run(plain, tmp_path):
    assert plain.run(convoy.Checkpoints(tmp_path, every=2)) == plain.run()


class Keeping(convoy.Checkpoints):
    """Takes all snapshots and copies them at once, as if writing them took until the end."""

    def __init__(self, folder):
        super().__init__(folder, every=2)
        self.kept = []

    def _save(self, progress):
        arrays = self._snapshotter.take(progress).arrays
        self.kept.append((arrays, {name: array.copy() for name, array in arrays.items()}))


@pytest.mark.parametrize(
    "strategy",
    [
        None,
        pytest.param({"devices": 2, "shard_optimizer_state": True}, marks=pytest.mark.slow),
        pytest.param({"devices": 2, "gradient_accumulation": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_snapshot_does_not_change_while_training_goes_on(plain, tmp_path, strategy):
    subject = plain if strategy is None else Subject(batch=4, **strategy)
    if strategy and "gradient_accumulation" in strategy:
        convoy.split(subject.model, ["dropout"])
    keeping = Keeping(tmp_path)
    subject.run(keeping)
    assert len(keeping.kept) > 5
    for arrays, copies in keeping.kept:
        for name, copy in copies.items():
            assert arrays[name].tobytes() == copy.tobytes(), name
    first, last = keeping.kept[0][1], keeping.kept[-1][1]
    assert any(first[name].tobytes() != last[name].tobytes() for name in first)


def test_without_checkpoints_a_stopped_run_is_lost(plain, tmp_path):
    """The tests above would not pass by themselves."""
    assert plain.run(spoil=True)[2] != plain.run()[2]


@pytest.mark.parametrize(
    "settings",
    [{"shuffle": False}, {"shuffle": "batch"}, {"steps_per_epoch": 4}, {"validate": False}],
    ids=str,
)
def test_resumes_whatever_fit_is_told(plain, tmp_path, settings):
    points = [(0, 2), (1, 2)]
    with warnings.catch_warnings():
        # Four steps of six: the third epoch has only four left, then two.
        warnings.filterwarnings("ignore", "The data ends after")
        assert_resumes_exactly(plain, tmp_path, points, **settings)


@pytest.mark.parametrize("shuffle", [True, pytest.param("batch", marks=pytest.mark.slow)])
def test_resumes_data_that_is_streamed(tmp_path, shuffle):
    assert_resumes_exactly(Subject(data_budget=0), tmp_path, POINTS[:3], shuffle=shuffle)


class Rows(keras.utils.PyDataset):
    """Batches of a PyDataset; writes down which ones were read in this process."""

    def __init__(self, subject, **settings):
        super().__init__(**settings)
        self.subject = subject
        self.read = []

    @property
    def num_batches(self):
        return SAMPLES // 8

    def __getitem__(self, index):
        self.read.append(index)
        rows = slice(8 * index, 8 * index + 8)
        return self.subject.x[rows], self.subject.y[rows]


@pytest.mark.parametrize("workers", [1, 2])
def test_resumes_a_data_set_without_reading_what_was_done(plain, tmp_path, workers):
    def run(*callbacks, **settings):
        dataset = Rows(plain, workers=workers)
        return plain.run(*callbacks, x=dataset, epochs=2, **settings), dataset

    expected, _ = run()
    with pytest.raises(StopError):
        run(convoy.Checkpoints(tmp_path, every=2), StopAt(0, 4))
    actual, dataset = run(convoy.Checkpoints(tmp_path, every=2), spoil=True)
    assert actual == expected
    # Two of the first epoch's six batches were left, and then the second epoch.
    assert len(dataset.read) == 2 + 6


@pytest.mark.filterwarnings("ignore:os.fork")
def test_resumes_a_data_set_that_worker_processes_read(plain, tmp_path):
    def run(*callbacks, **settings):
        dataset = Rows(plain, workers=2, use_multiprocessing=True)
        outcome = plain.run(*callbacks, x=dataset, epochs=2, **settings)
        assert dataset.read == []  # not in this process
        return outcome

    expected = run(convoy.Checkpoints(tmp_path / "whole", every=2))
    for point in [(0, 4), (1, 2)]:
        with pytest.raises(StopError):
            run(convoy.Checkpoints(tmp_path / "pieces", every=2), StopAt(*point))
    actual = run(convoy.Checkpoints(tmp_path / "pieces", every=2), spoil=True)
    assert actual == expected
    assert hash_of(tmp_path / "pieces") == hash_of(tmp_path / "whole")


class Reordered(Rows):
    """A data set that shuffles itself after each epoch, from a seed of its own."""

    def __init__(self, subject):
        super().__init__(subject)
        self.epoch = 0

    def __getitem__(self, index):
        order = np.random.default_rng(self.epoch).permutation(self.num_batches)
        return super().__getitem__(int(order[index]))

    def on_epoch_end(self):
        self.epoch += 1


class Telling(Reordered):
    def get_state(self):
        return self.epoch

    def set_state(self, state):
        self.epoch = state


def test_a_data_set_with_a_state_of_its_own_tells_it(plain, tmp_path):
    def run(*callbacks, **settings):
        return plain.run(*callbacks, x=Telling(plain), **settings)

    expected = run()
    for point in [(0, 2), (1, 4)]:
        with pytest.raises(StopError):
            run(convoy.Checkpoints(tmp_path, every=2), StopAt(*point))
    assert run(convoy.Checkpoints(tmp_path, every=2), spoil=True) == expected


# Keras counts one batch too many in an input whose length it does not know.
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_resumes_a_grain_data_set(plain, tmp_path):
    def rows(index):
        return plain.x[index], plain.y[index]

    def run(*callbacks, **settings):
        dataset = grain.MapDataset.source(range(SAMPLES)).shuffle(seed=4).map(rows).batch(8)
        return plain.run(*callbacks, x=dataset, shuffle=False, epochs=2, **settings)

    expected = run()
    with pytest.raises(StopError):
        run(convoy.Checkpoints(tmp_path, every=2), StopAt(1, 2))
    assert run(convoy.Checkpoints(tmp_path, every=2), spoil=True) == expected


def test_what_cannot_be_resumed_exactly_is_said_at_the_start(plain, tmp_path):
    def batches():
        while True:
            yield plain.x[:8], plain.y[:8]

    with pytest.warns(
        UserWarning, match="cannot be resumed exactly, since its order cannot be queried"
    ):
        plain.run(
            convoy.Checkpoints(tmp_path / "a"),
            x=batches(),
            steps_per_epoch=2,
            epochs=1,
            shuffle=False,
        )
    with pytest.warns(UserWarning, match=r"since on_epoch_end\(\) may change it"):
        plain.run(convoy.Checkpoints(tmp_path / "b"), x=Reordered(plain), epochs=1)


def test_a_finished_run_stays_finished_and_can_be_made_longer(plain, tmp_path):
    short = plain.run(convoy.Checkpoints(tmp_path), epochs=2)
    assert plain.run(convoy.Checkpoints(tmp_path), epochs=2, spoil=True) == short
    assert plain.run(convoy.Checkpoints(tmp_path), epochs=3, spoil=True) == plain.run()


def test_other_callbacks_remember(plain, tmp_path):
    def extra():
        return [
            keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, min_delta=1.0),
            keras.callbacks.EarlyStopping(
                "val_loss", patience=2, min_delta=1.0, restore_best_weights=True
            ),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        ]

    # Stops after the third of six epochs, with the weights of the first.
    points = [(0, 4), (1, 2), (2, 0)]
    assert_resumes_exactly(plain, tmp_path, points, extra, epochs=6)


# What is said -----------------------------------------------------------------------------------


def said(capsys):
    """Return what was printed, but for the progress of epochs."""
    printed = capsys.readouterr().out
    return [line for line in printed.splitlines() if line.startswith(("Resumed", "The ", "Begins"))]


def test_a_run_that_goes_on_says_from_where(plain, tmp_path, capsys):
    with pytest.raises(StopError):
        plain.run(convoy.Checkpoints(tmp_path, every=2), StopAt(1, 4), verbose=2)
    assert said(capsys) == []
    with pytest.raises(StopError):
        plain.run(convoy.Checkpoints(tmp_path), StopAt(2, 0), spoil=True, verbose=2)
    at = tmp_path / "epoch-0001-step-00000004"
    assert said(capsys) == [f"Resumed from {at} after 1 of 3 epochs and 4 steps of the next"]
    plain.run(convoy.Checkpoints(tmp_path), spoil=True, verbose=2)
    at = tmp_path / "epoch-0002-step-00000000"
    assert said(capsys) == [f"Resumed from {at} after 2 of 3 epochs"]


def test_a_run_with_nothing_left_to_train_says_so(plain, tmp_path, capsys):
    at = tmp_path / "epoch-0002-step-00000000"
    nothing = "nothing is left to train. Pass more epochs, or another folder."
    for epochs, expected in [
        (2, []),
        (2, [f"Resumed from {at} after 2 of 2 epochs: {nothing}"]),
        (1, [f"Resumed from {at} after 2 epochs, more than epochs=1: {nothing}"]),
    ]:
        plain.run(convoy.Checkpoints(tmp_path), epochs=epochs, verbose=2)
        assert said(capsys) == expected


def test_a_run_that_a_callback_ended_says_that_more_epochs_do_not_help(plain, tmp_path, capsys):
    for _ in range(2):
        stopping = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=9.0)
        plain.run(convoy.Checkpoints(tmp_path), stopping, epochs=9, verbose=2)
    (line,) = said(capsys)
    assert "after 2 of 9 epochs, where a callback ended the run: nothing is left" in line
    assert line.endswith("Pass another folder to start a new run.")


def test_nothing_is_said_with_verbose_0(plain, tmp_path, capsys):
    plain.run(convoy.Checkpoints(tmp_path), epochs=1)
    plain.run(convoy.Checkpoints(tmp_path), spoil=True)
    assert capsys.readouterr().out == ""


class OtherRate(keras.callbacks.Callback):
    """Compiles another learning rate, as far as a checkpoint can tell."""

    def on_train_begin(self, logs=None):
        self.model.optimizer.learning_rate = 0.05


def test_a_learning_rate_that_the_checkpoint_overrides_is_said(plain, tmp_path):
    expected = plain.run()
    with pytest.raises(StopError):
        plain.run(convoy.Checkpoints(tmp_path), StopAt(1, 0))
    # Each time, and not the next time that the rate is what it was.
    for _ in range(2):
        with (
            pytest.warns(
                UserWarning,
                match=r"compiled with learning_rate 0\.05 \(the run began with 0\.01\)\. The "
                "value of the checkpoint is used",
            ),
            pytest.raises(StopError),
        ):
            plain.run(OtherRate(), convoy.Checkpoints(tmp_path), StopAt(2, 0), spoil=True)
    assert plain.run(convoy.Checkpoints(tmp_path), spoil=True) == expected


def test_a_learning_rate_that_a_callback_has_changed_is_not_one_that_was_compiled(plain, tmp_path):
    def callbacks():
        return [
            keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, min_delta=9.0),
            convoy.Checkpoints(tmp_path),
        ]

    plain.run(*callbacks(), epochs=2)
    # As a new process does, and as the same one does if it goes on.
    plain.run(*callbacks(), epochs=3, spoil=True)
    assert float(plain.model.optimizer.learning_rate.value) < 0.009
    plain.model.fit(
        plain.x, plain.y, batch_size=plain.batch, epochs=4, verbose=0, callbacks=callbacks()
    )


def test_settings_that_are_other_ones_from_here_on_are_said(plain, tmp_path, capsys):
    plain.run(convoy.Checkpoints(tmp_path), epochs=1)
    optimizer = plain.model.optimizer
    try:
        optimizer.beta_1 = 0.8
        plain.run(convoy.Checkpoints(tmp_path), epochs=2, spoil=True, verbose=2)
        assert said(capsys)[1:] == [
            "The optimizer's settings change from here on: beta_1 0.8 (previously 0.9)"
        ]
        plain.run(convoy.Checkpoints(tmp_path), epochs=3, spoil=True, verbose=2)
        assert said(capsys)[1:] == []
    finally:
        optimizer.beta_1 = 0.9


def test_a_checkpoint_without_settings_is_not_compared(plain, tmp_path):
    plain.run(convoy.Checkpoints(tmp_path / "new"), epochs=1)
    position, content = Folder(tmp_path / "new").newest()
    del content.about["optimizer"]
    (tmp_path / "old").mkdir()
    store.write(tmp_path / "old" / position.name, content)
    plain.run(OtherRate(), convoy.Checkpoints(tmp_path / "old"), epochs=2, spoil=True)
    # Nobody knows the rate that the run began with, and it is not made up.
    assert "learning_rate" not in Folder(tmp_path / "old").newest()[1].about["optimizer"]


# How often, and which are kept ----------------------------------------------------------------


def positions(folder):
    return [tuple(position) for position in Folder(folder).positions()]


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("epoch", [(1, 0), (2, 0)]),
        (4, [(0, 4), (1, 2), (1, 6), (2, 0)]),
        (5, [(0, 6), (1, 4), (2, 0)]),
        (100, [(2, 0)]),
        ("1h", [(2, 0)]),
    ],
)
def test_every(plain, tmp_path, every, expected):
    plain.run(convoy.Checkpoints(tmp_path, every=every, keep=9), epochs=2)
    assert positions(tmp_path) == expected


def test_the_newest_and_the_best_are_kept(plain, tmp_path):
    checkpoints = convoy.Checkpoints(tmp_path, keep=1, best="max:val_loss")
    losses = plain.run(checkpoints)[0]["val_loss"]
    best = int(np.argmax(losses)) + 1
    assert best < 3
    assert positions(tmp_path) == [(best, 0), (3, 0)]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"every": "day"}, "every='day' is not an interval"),
        ({"every": 0}, "every=0 is not an interval"),
        ({"keep": 0}, "keep=0 is not a number of checkpoints"),
        ({"best": "val_foo"}, "best='val_foo' does not say whether a larger value is better"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(tmp_path, settings, match):
    with pytest.raises(ValueError, match=match):
        convoy.Checkpoints(tmp_path, **settings)


def test_a_metric_that_is_not_there_is_named(plain, tmp_path):
    with pytest.raises(
        ValueError, match=r"'val_auc' is not a metric of the epoch\. Pass one of .*accuracy, loss"
    ):
        plain.run(convoy.Checkpoints(tmp_path, best="val_auc"))


# What goes wrong ------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_passed_over(plain, tmp_path):
    expected = plain.run()
    with pytest.raises(StopError):
        plain.run(convoy.Checkpoints(tmp_path, every=2), StopAt(1, 4))
    newest = Folder(tmp_path).positions()[-1]
    assert newest == Position(1, 4)
    (Folder(tmp_path).at(newest) / store.ARRAYS).write_bytes(b"damaged")
    with pytest.warns(
        UserWarning, match=r"the checksum of its header is wrong.*The checkpoint before it is used"
    ):
        actual = plain.run(convoy.Checkpoints(tmp_path, every=2), spoil=True)
    assert actual == expected
    assert (tmp_path / f"damaged-{newest.name}").exists()


def test_a_checkpoint_of_another_model_is_refused(plain, tmp_path):
    plain.run(convoy.Checkpoints(tmp_path), epochs=1)

    def other():
        return keras.Sequential([keras.Input((6,)), layers.Dense(9), layers.Dense(3, "softmax")])

    subject = Subject(other)
    with pytest.raises(CheckpointError, match=r"another model: it has '.*kernel' \[6, 8\] float32"):
        subject.run(convoy.Checkpoints(tmp_path))
    assert positions(tmp_path) == [(1, 0)]


def test_a_model_of_stock_keras_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
    model.compile("sgd", "mse")
    with pytest.raises(CheckpointError, match=r"pass it to convoy\.prepare\(\)"):
        model.fit(
            np.zeros((4, 6)), np.zeros((4, 3)), verbose=0, callbacks=[convoy.Checkpoints(tmp_path)]
        )


def test_two_of_them_are_refused(plain, tmp_path):
    with pytest.raises(ValueError, match="received 2 Checkpoints callbacks"):
        plain.run(convoy.Checkpoints(tmp_path / "a"), convoy.Checkpoints(tmp_path / "b"))


def test_an_earlier_run_is_not_mixed_with_another_one(plain, tmp_path):
    plain.run(convoy.Checkpoints(tmp_path), epochs=1)
    with pytest.raises(CheckpointError, match="has checkpoints of an earlier run"):
        plain.run(convoy.Checkpoints(tmp_path, resume=False))


def wait_for_writing(checkpoints):
    if checkpoints._writing is not None:
        checkpoints._writing.exception()


class LimitFiles(keras.callbacks.Callback):
    """Lets no file grow from some epoch on to another: to a program much like a full disk."""

    def __init__(self, checkpoints, first, last):
        super().__init__()
        self.checkpoints, self.first, self.last = checkpoints, first, last
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_epoch_end(self, epoch, logs=None):
        wait_for_writing(self.checkpoints)
        limited = self.first <= epoch < self.last
        limit = (1000, self.before[1]) if limited else self.before
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def test_a_disk_that_is_full_for_a_while_does_not_stop_a_run(plain, tmp_path):
    checkpoints = convoy.Checkpoints(tmp_path)
    with pytest.warns(UserWarning, match="File too large.*Training continues"):
        actual = plain.run(LimitFiles(checkpoints, 1, 2), checkpoints)
    assert actual == plain.run()
    assert positions(tmp_path) == [(1, 0), (3, 0)]


def test_a_disk_that_stays_full_is_an_error_at_the_end_and_the_model_is_there(plain, tmp_path):
    checkpoints = convoy.Checkpoints(tmp_path)
    limit = LimitFiles(checkpoints, 1, 9)
    try:
        with (
            pytest.warns(UserWarning, match="File too large"),
            pytest.raises(CheckpointError, match="could not be written: File too large"),
        ):
            plain.run(limit, checkpoints)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit.before)
    values = plain.values()
    assert values == plain.run()[2]
    assert positions(tmp_path) == [(1, 0)]


class FillDisk(keras.callbacks.Callback):
    """Fills a file system from some epoch on to another."""

    def __init__(self, checkpoints, folder, first, last):
        super().__init__()
        self.checkpoints = checkpoints
        self.folder, self.first, self.last = folder, first, last

    def on_epoch_end(self, epoch, logs=None):
        wait_for_writing(self.checkpoints)
        if epoch == self.first:
            fill(self.folder)
        elif epoch == self.last:
            (self.folder / "filler").unlink()


def test_a_file_system_that_is_full_for_a_while_does_not_stop_a_run(plain, small_disk):
    checkpoints = convoy.Checkpoints(small_disk / "run")
    with pytest.warns(UserWarning, match="No space left on device.*Training continues"):
        actual = plain.run(FillDisk(checkpoints, small_disk, 1, 2), checkpoints)
    assert actual == plain.run()
    assert positions(small_disk / "run") == [(1, 0), (3, 0)]


def test_a_run_that_met_a_full_file_system_goes_on_when_there_is_room(plain, small_disk):
    checkpoints = convoy.Checkpoints(small_disk / "run")
    with (
        pytest.warns(UserWarning, match="No space left on device"),
        pytest.raises(CheckpointError, match="could not be written: No space left on device"),
    ):
        plain.run(FillDisk(checkpoints, small_disk, 1, 9), checkpoints)
    assert plain.values() == plain.run()[2]
    assert positions(small_disk / "run") == [(1, 0)]
    (small_disk / "filler").unlink()
    resumed = plain.run(convoy.Checkpoints(small_disk / "run"), spoil=True)
    assert resumed == plain.run()
