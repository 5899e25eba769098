import warnings

import pytest
from convoy.batch_config import BatchConfig


def test_a_weight_update_takes_micro_batches_of_all_replicas():
    config = BatchConfig(3, replicas=4, gradient_accumulation=2)
    assert config.global_batch == 24
    assert BatchConfig(3, replicas=4, gradient_accumulation=4).micro_batches_per_update == 16


def test_a_global_batch_gives_the_accumulation():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert BatchConfig.of_global(12, 3, 2) == BatchConfig(3, 2, 2)
        assert BatchConfig.of_global(5, 5, 1).global_batch == 5


def test_a_global_batch_that_does_not_divide_becomes_the_nearest():
    with pytest.warns(UserWarning, match="10 is not a multiple .* = 6; 12 is used, with 2"):
        config = BatchConfig.of_global(10, 3, 2)
    assert (config.gradient_accumulation, config.global_batch) == (2, 12)
    with pytest.warns(UserWarning, match="micro-batch 3 x 1 replica = 3; 9 is used"):
        BatchConfig.of_global(10, 3)


@pytest.mark.parametrize("samples", [18, 20])
def test_micro_batches_in_an_epoch_are_those_of_whole_updates(samples):
    for config, expected in ((BatchConfig(3, 2, 1), samples // 6 * 2), (BatchConfig(4, 2, 2), 4)):
        updates = config.updates_per_epoch(samples)
        assert updates * config.micro_batches_per_update == expected


def test_the_large_recipe():
    config = BatchConfig.of_global(8192, 16, 4)
    assert config.gradient_accumulation == 128
    assert config.updates_per_epoch(1_281_167) == 156


@pytest.mark.parametrize("values", [(0, 1, 1), (1, -1, 1), (1, 1, 1.5), (1, True, 1)])
def test_refuses_what_is_not_a_count(values):
    with pytest.raises(ValueError, match="is not a positive whole number"):
        BatchConfig(*values)
