import json
import os
import subprocess
import sys
from pathlib import Path

import convoy
import pytest
from convoy import ipu


def test_one_process_has_what_all_have():
    assert ipu.distributed.allgather([1, 2]).tolist() == [[1, 2]]
    assert ipu.distributed.allreduce(3, "SUM") == 3
    assert ipu.distributed.broadcast(3) == 3
    with pytest.raises(ValueError, match="'MAX' is not a ReduceOp"):
        ipu.distributed.allreduce(3, "MAX")


SCRIPT = """
import json
from convoy import ipu, processes
own = [processes.index() + 1.0, 8.1]
config = ipu.config.IPUConfig()
ipu.distributed.popdist_strategy.PopDistStrategy.update_ipu_config(None, config)
print(json.dumps({
    "gathered": ipu.distributed.allgather(own).tolist(),
    "sum": ipu.distributed.allreduce(own, "SUM").tolist(),
    "mean": ipu.distributed.allreduce(own, "MEAN").tolist(),
    "first": ipu.distributed.broadcast(own).tolist(),
    "processes": config.experimental.multi_replica_distribution.process_count,
}))
"""


@pytest.mark.slow
def test_launched_processes_tell_each_other(tmp_path):
    script = tmp_path / "collect.py"
    script.write_text(SCRIPT)
    words = ["-m", "convoy", "launch", "--num-instances", "2", str(script)]
    source = str(Path(convoy.__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    told = [json.loads(line[4:]) for line in ended.stdout.splitlines() if line[4:5] == "{"]
    assert told == 2 * [
        {
            "gathered": [[1.0, 8.1], [2.0, 8.1]],
            "sum": [3.0, 16.2],
            "mean": [1.5, 8.1],
            "first": [1.0, 8.1],
            "processes": 2,
        }
    ]
