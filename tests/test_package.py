"""What `pip install` gives to others: everything is in it, and it works where nothing else is."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

pytestmark = pytest.mark.slow


def run(*words, folder):
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with a source distribution, and the wheel that was made from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, folder=folder)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The programs of an environment that has the wheel and what it needs, and nothing else."""
    environment = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", environment, folder=environment)
    (wheel,) = built.glob("*.whl")
    run(environment / "bin/pip", "install", "--quiet", wheel, folder=environment)
    return environment / "bin"


def test_the_wheel_has_every_file_and_the_native_library(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    expected = {
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*")
        if file.is_file() and not {"native", "__pycache__"} & set(file.parts)
    }
    assert expected - set(names) == set()
    assert any(name.endswith("libconvoy_cpu.so") for name in names)


def test_the_source_distribution_has_what_the_wheel_is_made_of(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md"} <= names
    assert "src/convoy/cpu/native/primitive.h" in names


def test_it_works_where_nothing_else_is(installed, tmp_path):
    shown = run(installed / "convoy", "doctor", folder=tmp_path)
    assert "problems       none" in shown
    words = "train --dataset digits --model cifar_resnet8 --precision 32.32 --micro-batch-size 8"
    words += " --num-epochs 1 --num-replicas 2 --output-dir run"
    shown = run(installed / "convoy", *words.split(), folder=tmp_path)
    assert "held-out accuracy" in shown
