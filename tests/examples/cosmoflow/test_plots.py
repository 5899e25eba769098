import struct

import numpy as np

from cosmoflow.plots import draw_curves, draw_predictions, mean_error


def size_of(picture):
    """Return width and height from the header of a PNG file."""
    head = picture.read_bytes()[:24]
    assert head[1:4] == b"PNG"
    return struct.unpack(">II", head[16:24])


def test_curves_and_predictions_are_png_files(tmp_path, rng):
    history = [
        {"epoch": 1, "loss": 2.0, "mae": 0.5, "val_loss": 2.2, "val_mae": 0.6},
        {"epoch": 2, "loss": 1.0, "mae": 0.4},
    ]
    true = rng.uniform(-1, 1, (20, 4))
    draw_curves(history, tmp_path / "curves.png")
    draw_predictions(true, true + 0.1, tmp_path / "predicted.png")
    draw_predictions(true[:, :2], true[:, :2], tmp_path / "two.png")
    sizes = [size_of(tmp_path / f"{name}.png") for name in ("curves", "predicted", "two")]
    assert sizes == [(1080, 420), (1440, 384), (720, 384)]


def test_mean_error_is_that_of_predicting_the_mean():
    assert mean_error(np.array([[0.0, 1.0], [2.0, 1.0]])) == 0.5
