from pathlib import Path

from convoy.configuration import override, read_yaml

from cosmoflow.progress import Throughput
from cosmoflow.run_plan import make_plan
from cosmoflow.settings import read_settings

GRAPHCORE = Path(__file__).parents[3] / "examples" / "cosmoflow" / "configs" / "graphcore.yaml"


def plan(replicas=1):
    tree = override(read_yaml(GRAPHCORE), {"ipu_config.num_ipus": replicas})
    return make_plan(read_settings(tree))


def test_the_first_device_call_is_not_counted():
    throughput = Throughput(plan(2))
    for steps, seconds in ((5000, 100.0), (5000, 40.0), (2500, 10.0)):
        throughput.add(steps, seconds)
    assert throughput.first == (5000, 100)
    assert throughput.table == [
        "Iteration, Batches/Second, Samples/Second",
        "1, 125.000, 250.000",
        "2, 250.000, 500.000",
    ]
    assert throughput.final_line == (
        "Took 0.833 minutes, i.e. 300.00 samples per second for batch-size 1 and no. IPUs = 2"
    )


def test_the_only_device_call_of_a_run_is_counted():
    throughput = Throughput(plan())
    throughput.add(10, 2.0)
    assert throughput.table[1:] == ["1, 5.000, 5.000"]
