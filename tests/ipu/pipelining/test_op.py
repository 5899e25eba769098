import jax
import keras
import numpy as np
import pytest
from convoy import ipu
from convoy.ipu.ops.pipelining_ops import (
    PipelineSchedule,
)
from convoy.ipu.pipelining import network
from convoy.ipu.pipelining.options import FailedPreconditionError
from tests.ipu.pipelining.lines import (
    RATE,
    START,
    Infeed,
    Line,
    X,
    add_one,
    computed,
    double,
    identity,
)

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("schedule", "count"), [("Grouped", 2), ("Interleaved", 2), ("Sequential", 3)]
)
def test_computes_micro_batches_in_their_order(configure, schedule, count):
    configure(2)
    found = computed(
        [double, add_one],
        count,
        repeat_count=6 // count,
        pipeline_schedule=PipelineSchedule[schedule],
    )
    assert found.tolist() == [1, 3, 5, 7, 9, 11]


def test_stages_that_share_a_device_leave_room_for_fewer_micro_batches(configure):
    configure(2)
    settings = {"device_mapping": [0, 1, 0], "pipeline_schedule": PipelineSchedule.Interleaved}
    assert computed([double, identity, add_one], 1, **settings).tolist() == [1]
    with pytest.raises(FailedPreconditionError, match="gradient_accumulation_count=1 is not a mul"):
        computed([double, add_one], 1)


def test_inputs_come_before_the_element_of_the_infeed(configure):
    configure(2)

    def first(a, b, x, label):
        assert x.shape == (2,)
        return a * x + b, label

    pairs = Infeed([(np.full(2, n, "float32"), np.int32(n)) for n in range(4)])
    values, labels = computed(
        [first, lambda x, label: (x, label)], 4, inputs=[10, 0.5], infeed_queue=pairs
    )
    assert values.tolist() == [[0.5] * 2, [10.5] * 2, [20.5] * 2, [30.5] * 2]
    assert labels.tolist() == [0, 1, 2, 3]
    assert labels.dtype == np.int32


def test_inputs_alone_are_the_same_for_every_micro_batch(configure):
    configure(2)
    found = computed([double, identity], inputs=np.float32(4), infeed_queue=None)
    assert found.tolist() == [8, 8]


@pytest.mark.parametrize("wrap", [dict, lambda element: (element,)])
def test_a_dict_is_handed_over_by_name(configure, wrap):
    configure(2)
    elements = [{"image": np.float32(n), "label": np.int32(-n)} for n in range(2)]

    def first(scale, *, label, image):
        return {"scaled": scale * image, "label": label}

    def second(label, scaled):
        return {"y": scaled + 1, "label": label, "is_large": scaled > 5}

    found = computed(
        [first, second], inputs=[10.0], infeed_queue=Infeed([wrap(e) for e in elements])
    )
    assert found["y"].tolist() == [1, 11]
    assert found["label"].tolist() == [0, -1]
    assert found["is_large"].tolist() == [False, True]


def test_a_stage_may_compute_nothing(configure):
    configure(4)
    found = computed([identity, double, identity, lambda x: (x, 7.0)], 4)
    assert [part.tolist() for part in found] == [[0, 2, 4, 6], [7] * 4]


def test_functions_of_a_concurrent_stage_are_given_the_same(configure):
    configure(4)
    stages = [double, [add_one, identity], lambda more, same: (more, same)]
    interleaved = PipelineSchedule.Interleaved
    found = computed(stages, 3, device_mapping=[0, [1, 2], 3], pipeline_schedule=interleaved)
    assert [part.tolist() for part in found] == [[1, 3, 5], [0, 2, 4]]
    found = computed(stages, 3, device_mapping=[0, 2, 0])
    assert [part.tolist() for part in found] == [[1, 3, 5], [0, 2, 4]]


def test_more_executions_than_a_device_call_takes(configure, monkeypatch):
    configure(2)
    monkeypatch.setattr(network, "DEVICE_CALL", 4 * 12)
    assert computed([double, identity], 2, repeat_count=5).tolist() == list(range(0, 20, 2))
    line = Line()
    line.train(repeat_count=1)
    line.train(repeat_count=3, outfeed_loss=False)
    (losses,) = line.outfeed.dequeue()
    assert losses[::4] == pytest.approx([X * (START - n * 4 * RATE * X) for n in range(4)])


def test_stages_are_where_the_mapping_says(configure):
    configure(2)
    line = Line()
    line.train(device_mapping=(1, 0))
    assert line.layer.kernel.value.devices() == {jax.devices()[1]}
    line.train(device_mapping=[1, 1], pipeline_schedule=PipelineSchedule.Sequential)
    assert line.layer.kernel.value.devices() == {jax.devices()[1]}
    assert line.weight == pytest.approx(START - 2 * 4 * RATE * X)


def test_every_replica_takes_its_own_element(configure):
    configure(4)
    assert computed([double, add_one]).tolist() == [[1, 3], [5, 7]]
    assert computed([double, identity, add_one], 3).tolist() == [1, 3, 5]
    (found,) = computed([double, add_one], accumulate_outfeed=True)
    assert found.tolist() == [[6, 10]]


@pytest.mark.parametrize(("scope", "factor"), [(True, 2), (False, 1)])
def test_gradients_of_replicas_are_put_together(configure, scope, factor):
    configure(4)
    optimizer = keras.optimizers.SGD(RATE)
    if scope:
        line = Line(optimizer)
        with ipu.ipu_strategy.IPUStrategy().scope():
            line.train()
    else:
        line = Line(ipu.optimizers.CrossReplicaOptimizer(optimizer))
        line.train()
    assert line.weight == pytest.approx(START - factor * 4 * RATE * X)
    assert np.shape(line.outfeed.dequeue()) == (1, 4, 2)


def test_gradients_of_replicas_must_come_together(configure):
    configure(4)
    with pytest.raises(ValueError, match=r"trained on 2 replicas, .*\.CrossReplicaOptimizer"):
        Line().train()


def test_says_how_many_devices_are_missing(configure):
    configure(1)
    with pytest.raises(ValueError, match="devices 0 to 1, but 1 are configured"):
        computed([double, identity])
