"""Kill it anywhere, start it again, and get the same run."""

import signal

import numpy as np
import pytest
from convoy.checkpoint import EXIT_STATUS
from convoy.checkpoint.folder import Folder

from .kill import Victims, kill_until_done
from .victim import VARIANTS

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def victims(tmp_path_factory):
    victims = Victims(tmp_path_factory.mktemp("programs"))
    yield victims
    victims.close()


@pytest.fixture(scope="module")
def whole(victims, tmp_path_factory):
    """The outcome of the plain run, if nobody kills it."""
    ended = victims.run("plain", tmp_path_factory.mktemp("whole"))
    assert ended.status == 0
    assert len(ended.outcome["history"]["order"]) == 3
    return ended.outcome


def test_a_run_that_is_killed_three_times_ends_with_the_same_bits(victims, whole, tmp_path):
    ended, killed = kill_until_done(victims, "plain", tmp_path, np.random.default_rng(1), kills=3)
    assert len(killed) == 3
    assert ended.outcome == whole


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_run_that_is_killed_ends_with_the_same_bits(victims, variant, tmp_path):
    expected = victims.run(variant, tmp_path / "whole")
    assert expected.status == 0
    rng = np.random.default_rng(2)
    ended, killed = kill_until_done(victims, variant, tmp_path / "killed", rng, kills=4)
    assert killed
    assert ended.outcome == expected.outcome


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_ends_a_run_with_a_checkpoint_of_that_moment(victims, whole, tmp_path, number):
    ended = victims.run("plain", tmp_path, after=3, what="call", sent=[number])
    assert ended.status == EXIT_STATUS
    # No checkpoint was due where it stopped but for the signal, or one was; it is there either way.
    position = Folder(tmp_path).positions()[-1]
    calls = ended.ticks.count("call")
    assert 6 * position.epoch + position.step // 2 == calls
    assert victims.run("plain", tmp_path).outcome == whole


@pytest.mark.slow
def test_a_signal_during_validation_ends_a_run_too(victims, whole, tmp_path):
    ended = victims.run("plain", tmp_path, after=1, what="validation", sent=[signal.SIGTERM])
    assert ended.status == EXIT_STATUS
    assert victims.run("plain", tmp_path).outcome == whole


def test_a_second_signal_ends_it_at_once(victims, whole, tmp_path):
    sent = [signal.SIGTERM, signal.SIGINT]
    ended = victims.run("plain", tmp_path, after=3, what="call", sent=sent)
    assert ended.status in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert victims.run("plain", tmp_path).outcome == whole
