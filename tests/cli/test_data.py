import numpy as np
from convoy_command import cli


def test_a_whole_data_set(capsys):
    assert cli.main(["data", "verify", "--dataset", "digits"]) == 0
    shown = capsys.readouterr().out
    assert "train     1408 images of 1408, 10 classes of 10" in shown
    assert shown.endswith("digits is complete\n")


def test_a_part_of_one_and_none(capsys, tmp_path, rng):
    part = {"x": rng.integers(0, 256, (6, 28, 28)).astype("uint8"), "y": np.arange(6) % 2}
    np.savez(
        tmp_path / "mnist.npz",
        **{f"{key}_{name}": value for key, value in part.items() for name in ("train", "test")},
    )
    words = ["data", "verify", "--dataset", "mnist", "--dataset-path"]
    assert cli.main([*words, str(tmp_path)]) == 1
    assert "6 images of 60000, 2 classes of 10" in capsys.readouterr().out
    assert cli.main([*words, str(tmp_path / "nowhere")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
