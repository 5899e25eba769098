import json

import pytest
from convoy.cli.compile import main
from convoy.compile import toolchain
from tests import parts
from tests.compile.networks import SIDE

SCRIPT = f"""
import sys
import convoy, keras, numpy as np

strategy = convoy.Strategy(2)
with strategy.scope():
    model = keras.Sequential([keras.Input(({SIDE},)), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
x = np.zeros((32, {SIDE}), "float32")
model.fit(x, x[:, :4], batch_size=int(sys.argv[1]), verbose=0)
model.save("{{folder}}/model.keras")
"""


def error_of(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_bad_target_is_one_line(capsys):
    line = error_of(capsys, "--target", "tpu:v9:4x4", "--model", "cifar_resnet8")
    assert line.startswith("convoy compile: error: --target tpu:v9:4x4: 'v9' is not one of v5e,")


def test_a_missing_compiler_is_one_line(capsys, monkeypatch):
    def version(name):
        raise toolchain.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(toolchain.metadata, "version", version)
    line = error_of(capsys, "--target", "tpu:v5e:2x2", "--model", "cifar_resnet8")
    assert "needs the package libtpu, which is not installed. Install it with: pip" in line


@pytest.mark.targets
@pytest.mark.parametrize("target", [pytest.param("tpu:v5e:2x2", marks=parts.needs("libtpu"))])
def test_a_missing_script_is_one_line(capsys, target):
    assert "nothing.py is not a file. Pass" in error_of(capsys, "--target", target, "nothing.py")


def test_no_target_is_one_line(capsys):
    assert "--target" in error_of(capsys, "--model", "cifar_resnet8")


@pytest.mark.targets
@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        pytest.param("tpu:v5e:2x2", marks=parts.needs("libtpu")),
        pytest.param("gpu:h100:2", marks=parts.needs("JAX's CUDA plugin")),
    ],
)
def test_a_script_is_compiled_and_saves_nothing(capfd, tmp_path, target):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("{folder}", str(tmp_path)))
    status = main(["--target", target, "--json", str(script), "8"])
    shown = capfd.readouterr()
    document = json.loads(shown.out)
    assert status == 0
    assert document["fits"]
    (program,) = document["programs"]
    assert (program["name"], program["devices"]) == ("train", 2)
    assert [c["count"] for c in program["collectives"]] == [1]
    assert not (tmp_path / "model.keras").exists()
    progress = shown.err.splitlines()
    assert progress[0] == "train (fit) ..."
    assert len(progress) == 2
