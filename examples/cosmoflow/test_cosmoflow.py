"""The script trains to its end on two devices: `python3 -m pytest test_cosmoflow.py`."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_trains_on_two_devices(tmp_path: Path) -> None:
    words = ["configs/graphcore.yaml", "--num-ipus", "2", "--output-dir", str(tmp_path)]
    size = ["--n-train", "4", "--n-epochs", "1", "--iterations-per-loop", "1"]
    done = subprocess.run(
        [sys.executable, "train.py", *words, *size], cwd=HERE, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("batch-size 1 and no. IPUs = 2")
