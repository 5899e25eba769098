"""Errors that may pass: the checkpoint is neither used, nor skipped, nor renamed."""

import errno
import os
import resource

import pytest
from convoy.checkpoint import CheckpointError, DamagedError, files, store

from .conftest import FIRST, SECOND, newest_seed

PASSING = [errno.EIO, errno.EMFILE, errno.EACCES, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT]


def assert_left_as_it_is(folder, reason):
    with pytest.raises(CheckpointError, match=f"{reason}.*left as it is. Try again") as raised:
        folder.newest()
    assert not isinstance(raised.value, DamagedError)
    assert "\n" not in str(raised.value)
    assert folder.positions() == [FIRST, SECOND]


@pytest.mark.parametrize("number", PASSING, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", [store.MANIFEST, store.ARRAYS, store.MODEL])
def test_an_error_of_the_system_is_no_damage(folder, monkeypatch, number, name):
    def fails(path, flags):
        if str(path).endswith(name):
            raise OSError(number, os.strerror(number))
        return os.open(path, flags)

    monkeypatch.setattr(files, "_open_without_waiting", fails)
    assert_left_as_it_is(folder, os.strerror(number))
    monkeypatch.undo()
    assert newest_seed(folder) == 2


def test_an_error_while_a_file_is_read_is_no_damage(folder, monkeypatch):
    """The memory of a process can be opened, but its first page cannot be read: EIO."""

    def opens_memory(path, flags):
        return os.open("/proc/self/mem" if str(path).endswith(store.ARRAYS) else path, flags)

    monkeypatch.setattr(files, "_open_without_waiting", opens_memory)
    assert_left_as_it_is(folder, "Input/output error")


def test_too_many_open_files_are_no_damage(folder):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="Too many open files") as raised:
            folder.newest()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not isinstance(raised.value, DamagedError)
    assert newest_seed(folder) == 2


def test_verify_tells_damage_from_an_error_that_may_pass(folder, monkeypatch, call, capsys):
    def fails(path, flags):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files, "_open_without_waiting", fails)
    assert call("verify", folder.path) == 1
    assert capsys.readouterr().out.count("NOT VERIFIED") == 2


def test_a_file_larger_than_the_limit_is_not_read(tmp_path):
    (tmp_path / "large").write_bytes(bytes(100))
    with pytest.raises(DamagedError, match="more than 99 bytes"):
        files.read_file(tmp_path / "large", 99)
    assert files.read_file(tmp_path / "large", 100) == bytes(100)
