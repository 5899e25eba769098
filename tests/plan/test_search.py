import pytest
from convoy.plan.predict import Predictor
from convoy.plan.search import configurations, search
from tests.plan.networks import MB, chain, machine


@pytest.mark.parametrize(("devices", "batch"), [(1, 1), (6, 24), (16, 8192), (7, 64), (100, 30)])
def test_every_configuration_keeps_the_batch_and_finds_room(devices, batch):
    found = list(configurations(devices, min(devices, 8), batch, max_stages=5))
    assert found
    assert len(set(found)) == len(found)
    for one in found:
        assert one.global_batch == batch
        assert one.devices <= devices
        assert one.stages <= min(5, 8)


def test_replicas_are_best_where_everything_fits():
    found = search(Predictor(chain(), machine(4, exchange=1e12), 1), 64)
    best = found.best[0].configuration
    assert (best.replicas, best.stages, best.activation_checkpointing) == (4, 1, False)
    assert found.too_large == 0


def test_stages_are_best_where_weights_do_not_fit():
    # 40 MB of weights take 160; a stage of half of them takes 80.
    found = search(Predictor(chain(), machine(4, memory=120 * MB), 1), 64)
    assert found.best[0].configuration.stages > 1
    assert found.too_large


def test_what_is_shown_is_the_same_if_less_is_simulated():
    predictor = Predictor(chain((1, 2, 3, 1, 2, 2)), machine(8, memory=400 * MB), 1)
    everything, few = search(predictor, 256), search(predictor, 256, best=3)
    assert [one.seconds for one in few.best[:3]] == [one.seconds for one in everything.best[:3]]
    assert len(few.best) < len(everything.best) == everything.fitting


def test_it_is_said_what_would_be_needed_if_nothing_fits():
    found = search(Predictor(chain(), machine(4, memory=10 * MB), 1), 64)
    assert found.best == ()
    one, memory = found.smallest
    assert one.stages == 4
    assert memory > 10 * MB


def test_thousands_of_devices_are_one_pipeline_and_an_exchange():
    few = search(Predictor(chain(), machine(16), 1), 65536)
    many = search(Predictor(chain(), machine(4096, per_host=16), 1), 65536)
    assert many.best[0].configuration.devices == 4096
    assert 1 < many.best[0].throughput / few.best[0].throughput < 256
