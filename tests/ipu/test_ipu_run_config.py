import pytest
from convoy import ipu
from convoy.ipu.ipu_run_config import ALL, IPURunConfig, RunConfig


def configuration(count):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = count
    return config


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"num_replicas": 2}, ValueError, "need ipu_options whose auto_select_ipus is 2"),
        ({"num_shards": 2}, ValueError, "need ipu_options"),
        ({"ipu_options": "two"}, TypeError, "ipu_options is of type str. Pass an IPUConfig"),
        (
            {"ipu_options": configuration(2)},
            ValueError,
            "1 devices, but auto_select_ipus selects 2",
        ),
        (
            {"ipu_options": configuration([1, 4]), "ordinal": 1, "num_replicas": 2},
            ValueError,
            "2 devices, but auto_select_ipus selects 4",
        ),
        (
            {"ipu_options": configuration([1]), "ordinal": 1},
            ValueError,
            "ordinal=1, but auto_select_ipus has 1 entries",
        ),
        ({"iterations_per_loop": 0}, ValueError, "iterations_per_loop=0"),
        ({"prefetch_depth": 256}, ValueError, "prefetch_depth=256 is out of range. Pass 1 to 255"),
    ],
)
def test_refuses_numbers_that_do_not_fit_together(arguments, error, match):
    with pytest.raises(error, match=match):
        IPURunConfig(**arguments)


def test_replicas_and_shards_are_all_the_devices():
    config = IPURunConfig(ipu_options=configuration(4), num_replicas=2, num_shards=2)
    assert config.devices == 4


def test_takes_what_earlier_releases_had(caplog):
    assert IPURunConfig(compile_summary=True, autosharding=True).devices == 1
    assert "ignored in IPURunConfig: compile_summary." in caplog.text
    assert RunConfig().ipu == IPURunConfig()


def test_speaks_of_the_same_as_the_native_one():
    config = RunConfig(
        IPURunConfig(iterations_per_loop=5),
        model_dir="here",
        tf_random_seed=3,
        save_summary_steps=0,
        save_checkpoints_steps=10,
        keep_checkpoint_max=0,
        log_step_count_steps=None,
    ).native()
    assert (config.steps_per_execution, config.seed, config.model_dir) == (5, 3, "here")
    assert (config.checkpoint_every, config.keep) == (10, ALL)
    assert config.summary_every is config.log_every is config.report is None
    assert RunConfig().native().checkpoint_every == "600s"


def test_refuses_what_one_process_cannot_do():
    with pytest.raises(NotImplementedError, match="num_replicas"):
        RunConfig(train_distribute=object())
    with pytest.raises(
        ValueError, match="save_checkpoints_steps or save_checkpoints_secs, not both"
    ):
        RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1)
