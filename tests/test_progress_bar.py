import io
import sys

import pytest
from convoy import progress_bar
from convoy.progress_bar import Output, tracked


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


class Terminal(io.StringIO):
    def isatty(self):
        return True


def frames(written):
    """Return what stood in the last line of a terminal each time that it was drawn anew."""
    return [frame.rstrip(" ") for frame in written.split("\r") if frame.strip(" ")]


def test_a_bar_is_drawn_over_itself_and_lines_stay(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    output = Output(Terminal())
    output.begin(4, "compiling ...")
    output.advance(1, "epoch 1/2", {"": "5 images/s", "loss": "0.5"})
    output.line("kept")
    output.advance(4, "epoch 2/2", {"loss": "0.25"})
    output.end()
    output.line("after")
    shown = output.stream.getvalue()
    assert shown.count("\n") == 2
    compiling, quarter, kept, again, whole, after = frames(shown)
    assert compiling == "compiling ..."
    assert "25%  " in quarter
    assert quarter.endswith(" left  5 images/s  loss 0.5")
    assert kept == "kept\n"
    assert again == quarter
    assert whole.endswith("100%  00:00 left  loss 0.25")
    assert after == "after\n"
    assert all(len(line) < 80 for line in (quarter, whole))


def test_a_bar_is_as_long_as_the_terminal_leaves_it(monkeypatch):
    lengths = {}
    for columns in (60, 80, 400):
        monkeypatch.setenv("COLUMNS", str(columns))
        output = Output(Terminal())
        output.begin(4, "compiling ...")
        output.advance(2, "epoch 1/2", {"loss": "0.5"})
        frame = frames(output.stream.getvalue())[-1]
        lengths[columns] = len(frame)
        assert frame.count("━") == pytest.approx(frame.count("─"), abs=1)
    assert lengths[60] < 60
    assert lengths[60] < lengths[80] < lengths[400] <= 100


def test_values_that_do_not_fit_are_left_out(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    output = Output(Terminal())
    output.begin(4, "compiling ...")
    values = {"": "2,343 images/s", "loss": "0.0007", "accuracy": "100.00%", "lr": "0.009158"}
    output.advance(2, "epoch 75/400", values)
    frame = frames(output.stream.getvalue())[-1]
    assert frame.endswith(" left  2,343 images/s  loss 0.0007")
    assert len(frame) < 80
    assert frame.count("━") >= 5


def test_without_a_terminal_there_are_only_lines():
    output = Output(io.StringIO())
    output.begin(4, "compiling ...")
    output.advance(1, "epoch 1/2", {"loss": "0.5"})
    output.line("said")
    output.end()
    assert output.stream.getvalue() == "said\n"


def test_without_a_terminal_a_line_about_the_progress_is_written_at_intervals(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    output = Output(io.StringIO(), line_seconds=10.0)
    now[0] = 200.0
    output.begin(4, "compiling ...")
    for done, now[0] in ((1, 209.0), (2, 210.0), (3, 219.0), (4, 230.0)):
        assert output.is_due() == (done in (2, 4))
        output.advance(done, "epoch 1/1", {"loss": "0.5"}, f"{done} of 4")
        output.advance(done, "epoch 1/1", {"loss": "0.5"})
    assert output.stream.getvalue() == "2 of 4\n4 of 4\n"


def test_a_bar_is_updated_at_shorter_intervals_and_needs_no_lines(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    output = Output(Terminal(), line_seconds=10.0)
    output.begin(4, "compiling ...")
    now[0] = 100.1
    assert not output.is_due()
    now[0] = 100.3
    assert output.is_due()
    output.advance(1, "epoch 1/1", {"loss": "0.5"}, "1 of 4")
    assert not output.is_due()
    assert "1 of 4" not in output.stream.getvalue()


def test_tracked_work_has_a_bar_on_a_terminal_until_it_is_done(monkeypatch):
    monkeypatch.setattr(progress_bar, "QUIET_SECONDS", 0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(tracked(range(3), "timing")) == [0, 1, 2]
    shown = frames(sys.stderr.getvalue())
    assert shown[0].startswith("timing ──")
    assert shown[0].endswith("  0%  ? left")
    assert not sys.stderr.getvalue().split("\r")[-1].strip(" ")


def test_tracked_work_that_is_short_or_in_a_log_shows_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(tracked(range(3), "timing")) == [0, 1, 2]
    assert sys.stderr.getvalue() == ""
    monkeypatch.setattr(progress_bar, "QUIET_SECONDS", 0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert list(tracked(range(3), "timing")) == [0, 1, 2]
    assert sys.stderr.getvalue() == ""
