import io

import pytest
from convoy.progress_bar import Output
from convoy.train.metrics import MetricsRow
from convoy.train.run_folder import RunFolder
from convoy.train.run_log import RunLog

ROW = MetricsRow("training", 8, 0.5, 1.5, 0.25, 10.0, 0.1)


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "beginning"),
    [
        (Terminal, "training    epoch 0.5"),
        (io.StringIO, "batch 3: ['throughput: 10.0 samples/sec'"),
    ],
)
def test_a_row_goes_to_the_folder_the_output_and_every_tracker(tmp_path, stream, beginning):
    tracked = []
    log = RunLog(RunFolder(tmp_path), Output(stream()), [tracked.append, tracked.append])
    log.folder.open({})
    log.log(ROW, "batch 3")
    log.folder.close()
    assert log.folder.rows == [ROW]
    assert log.output.stream.getvalue().startswith(beginning)
    assert tracked == [ROW, ROW]
