import numpy as np
import pytest
from convoy.checkpoint import store
from convoy_command import cli


@pytest.fixture
def folder(tmp_path):
    checkpoint = store.Checkpoint({"trainable/0/w": np.ones(3)}, {"weights_only": True}, {})
    store.write(tmp_path / "epoch-0001-step-00000000", checkpoint)
    return tmp_path


def test_every_action_prints_and_returns_its_status(folder, capsys):
    for action in ("list", "show", "verify"):
        assert cli.main(["checkpoint", action, str(folder)]) == 0
        assert "epoch-0001-step-00000000" in capsys.readouterr().out
    words = ["checkpoint", "average", str(folder), "--output", str(folder / "mean")]
    assert cli.main(words) == 0
    assert capsys.readouterr().out == f"{folder / 'mean'}: the average of 1 checkpoint\n"


def test_a_missing_action_is_answered_with_the_actions(capsys):
    with pytest.raises(SystemExit):
        cli.main(["checkpoint"])
    assert capsys.readouterr().err == (
        "convoy checkpoint: error: the following arguments are required: ACTION. Pass one of list, "
        "show, verify, average, convert\n"
    )


def test_an_error_is_one_line_and_status_1(folder, capsys):
    assert cli.main(["checkpoint", "convert", str(folder), str(folder / "model.keras")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(
        "convoy checkpoint: error: The checkpoint has no configuration of its model"
    )
    assert error.count("\n") == 1
