"""Messages and the output of commands, on the console and in log files."""

import pytest
from convoy.bench.console import Console


@pytest.fixture
def lines(tmp_path, capsys):
    """Return what was shown, and the two log files, as lists of lines."""

    def read():
        shown = capsys.readouterr()
        files = (tmp_path / "console.log", tmp_path / "output.log")
        return (
            shown.out.splitlines(),
            shown.err.splitlines(),
            *(file.read_text().splitlines() for file in files),
        )

    return read


def test_messages_below_the_level_are_only_logged(tmp_path, lines):
    with Console(tmp_path, "ERROR") as console:
        console.info("begun")
        console.error("failed")
    out, err, log, _ = lines()
    assert out == []
    assert len(err) == 1
    assert err[0].startswith("[ERROR] ")
    assert err[0].endswith(": failed")
    assert [line.rpartition(": ")[2] for line in log] == ["begun", "failed"]


def test_output_of_commands_has_a_file_of_its_own(tmp_path, lines):
    with Console(tmp_path, "INFO") as console:
        assert console.shows_output
        console.output("epoch 1")
        console.plain("summary")
    out, err, log, output = lines()
    assert (out, err) == (["  | epoch 1", "summary"], [])
    assert (log, output) == (["summary"], ["epoch 1"])


def test_output_is_not_shown_if_only_warnings_are(tmp_path, lines):
    with Console(tmp_path, "WARNING") as console:
        assert not console.shows_output
        console.output("epoch 1")
    out, _, _, output = lines()
    assert (out, output) == ([], ["epoch 1"])
