import pytest
from convoy.estimator import EstimatorSpec, ModeKeys, PipelineEstimatorSpec
from convoy.estimator.spec import Stages


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"mode": "training"}, "'training' is not a mode. Pass one of ModeKeys.TRAIN"),
        ({"mode": ModeKeys.TRAIN, "loss": "mse"}, "for TRAIN has no optimizer"),
        ({"mode": ModeKeys.TRAIN, "optimizer": "sgd"}, "for TRAIN has no loss"),
        ({"mode": ModeKeys.EVAL}, "for EVAL has no loss or host_metrics"),
        ({"mode": ModeKeys.PREDICT}, "for PREDICT has no predictions"),
        (
            {"mode": "eval", "loss": "mse", "metrics": {"a": 1}, "host_metrics": (max, [])},
            "Both metrics and host_metrics",
        ),
        ({"mode": "eval", "loss": "mse", "logged": {"a": 1}}, "not a tensor of the network"),
    ],
)
def test_a_spec_has_what_its_mode_needs(arguments, match):
    with pytest.raises(ValueError, match=match):
        EstimatorSpec(**arguments)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"mode": "train", "stages": [max, max]}, "for TRAIN has no optimizer"),
        ({"mode": "eval", "stages": [max, max]}, "for EVAL has no host_metrics"),
        ({"mode": "train", "stages": [max], "optimizer": "sgd"}, "two stages or more"),
        ({"mode": "now", "stages": [max, max]}, "'now' is not a mode"),
    ],
)
def test_a_spec_of_stages_has_what_its_mode_needs(arguments, match):
    with pytest.raises(ValueError, match=match):
        PipelineEstimatorSpec(**arguments)


@pytest.mark.parametrize(("mapping", "devices"), [(None, 3), ([0, 1, 0], 2), ([2, 1, 0], 3)])
def test_a_replica_has_the_devices_that_its_stages_are_on(mapping, devices):
    stages = Stages(2, "gpipe", mapping)
    assert stages.devices_per_replica == devices
    assert stages.options == {
        "schedule": "gpipe",
        "device_mapping": mapping,
        "activation_checkpointing": False,
    }
