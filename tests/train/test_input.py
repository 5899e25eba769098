import numpy as np
import pytest
from convoy.train.flags import Options
from convoy.train.input import Images, open_images, some_images, training_input
from convoy.train.network import make_network
from convoy.train.run_settings import make_run_settings
from tests.data.pictures import write_folders

BYTES = {"eight_bit_transfer": True, "accelerator_side_preprocess": True}


def test_some_images_are_from_all_over_the_data(rng):
    everything = rng.integers(0, 256, (5000, 32, 32, 3)).astype("uint8")
    split = everything, np.zeros(5000, np.int32)
    some = some_images(make_run_settings(Options(**BYTES)), Images(split, split))
    assert 1900 < len(some) < 2000
    np.testing.assert_array_equal(some[[0, -1]], everything[[0, -1]])
    normalised = some_images(
        make_run_settings(Options(normalisation="scale")), Images(split, split)
    )
    np.testing.assert_allclose(normalised, some / 255, rtol=1e-6)


def test_some_images_of_files_are_their_middles(tmp_path):
    write_folders(tmp_path)
    options = Options(dataset="imagenet", dataset_path=str(tmp_path), micro_batch_size=1, **BYTES)
    settings = make_run_settings(options, 12)
    some = some_images(settings, open_images(options, settings.info, 0))
    assert (some.shape, some.dtype) == ((12, 224, 224, 3), np.uint8)
    # Each image has the colour of its class.
    assert set(some.mean((1, 2)).argmax(1)) == {0, 1, 2}


@pytest.mark.parametrize("side", [{}, BYTES], ids=["host", "device"])
def test_alternating_flips_are_done_by_the_host_and_by_nobody_else(rng, side):
    split = rng.integers(0, 256, (20, 32, 32, 3)).astype("uint8"), np.arange(20) % 10
    ways = {"flip": "alternating", "crop_padding": 0, "normalisation": "scale"}
    settings = make_run_settings(
        Options(micro_batch_size=5, shuffle=False, seed=1, **ways, **side), 20
    )
    with training_input(settings, Images(split, split)) as data:
        first, second = [], []
        for epoch in (first, second):
            epoch += [data["x"][number][0] for number in range(4)]
            data["x"].on_epoch_end()
    np.testing.assert_array_equal(np.concatenate(first), np.concatenate(second)[:, :, ::-1])
    for layer in make_network(settings.options, settings.info, 1).layers:
        assert not getattr(layer, "flip", False)


def test_missing_data_is_said_with_the_flag_for_synthetic_data(tmp_path):
    options = Options(dataset="mnist", dataset_path=str(tmp_path / "none"))
    with pytest.raises(
        ValueError, match=r"no such folder.* --synthetic-data host needs no data\.$"
    ):
        open_images(options, make_run_settings(options).info, seed=1)
