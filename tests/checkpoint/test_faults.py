"""A disk that fails while a run saves: training continues, and the run can be resumed."""

import os
import resource
import subprocess

import convoy
import keras
import pytest
from convoy.checkpoint import CheckpointError
from convoy.checkpoint.folder import Folder

pytestmark = pytest.mark.integration


class Fault(keras.callbacks.Callback):
    """Makes each save fail from one epoch to another one."""

    def __init__(self, checkpoints, first, last):
        super().__init__()
        self.checkpoints, self.first, self.last = checkpoints, first, last

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.first:
            # The save of the epoch before has to end first.
            if self.checkpoints._writing is not None:
                self.checkpoints._writing.exception()
            self.begin(self.checkpoints.folder.path)
        elif epoch == self.last:
            self.checkpoints._wait()
            self.end(self.checkpoints.folder.path)


class ReadOnly(Fault):
    """The folder becomes a mount that is read-only, for root too."""

    def begin(self, folder):
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)

    def end(self, folder):
        subprocess.run(["umount", folder], check=True)


class ReplacedByFile(Fault):
    def begin(self, folder):
        folder.rename(folder.with_name("moved"))
        folder.write_text("")

    def end(self, folder):
        folder.unlink()
        folder.with_name("moved").rename(folder)


class NoDescriptors(Fault):
    def begin(self, folder):
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, self.limits[1]))

    def end(self, folder):
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)


FAULTS = {
    ReadOnly: "Read-only file system",
    ReplacedByFile: "File exists|Not a directory",
    NoDescriptors: "Too many open files",
}


@pytest.fixture(scope="module")
def undisturbed(plain):
    return plain.run()


@pytest.fixture(autouse=True)
def _mounts_are_allowed(request, small_disk):
    """Skip where a file system cannot be mounted."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_is_a_warning(plain, undisturbed, tmp_path, fault):
    checkpoints = convoy.Checkpoints(tmp_path / "run", keep=9)
    with pytest.warns(UserWarning, match=f"could not be written: ({FAULTS[fault]})") as warned:
        actual = plain.run(fault(checkpoints, 1, 2), checkpoints)
    assert actual == undisturbed
    assert all("\n" not in str(one.message) for one in warned)
    assert Folder(tmp_path / "run").positions() == [(1, 0), (3, 0)]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_stays_is_an_error_and_the_run_resumes(plain, undisturbed, tmp_path, fault):
    checkpoints = convoy.Checkpoints(tmp_path / "run", keep=9)
    failing = fault(checkpoints, 1, 99)
    with (
        pytest.warns(UserWarning, match="Training continues"),
        pytest.raises(CheckpointError, match=FAULTS[fault]) as raised,
    ):
        plain.run(failing, checkpoints)
    failing.end(tmp_path / "run")
    assert "\n" not in str(raised.value)
    assert Folder(tmp_path / "run").positions() == [(1, 0)]
    resumed = plain.run(convoy.Checkpoints(tmp_path / "run"), spoil=True)
    assert resumed == undisturbed
    # Without descriptors, only the next run can remove temporary files.
    assert not list((tmp_path / "run").glob(".unfinished-*"))


def test_a_folder_that_is_read_only_is_one_line_before_the_first_step(plain, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    fault = ReadOnly(None, 0, 0)
    fault.begin(folder)
    try:
        with pytest.raises(CheckpointError, match=r"cannot be used .*: Read-only file system"):
            plain.run(convoy.Checkpoints(folder))
    finally:
        fault.end(folder)
