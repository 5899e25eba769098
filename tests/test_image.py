"""The image of the Dockerfile: its file is checked, and its steps run without Docker."""

import fnmatch
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import parts

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "Dockerfile"


@parts.needs("hadolint")
def test_hadolint_finds_nothing():
    words = [parts.find_program("hadolint"), str(DOCKERFILE)]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_the_image_runs_as_an_unprivileged_user_and_starts_convoy():
    text = DOCKERFILE.read_text()
    last = text.rpartition("\nFROM ")[2]
    assert "\nUSER 1000\n" in last
    assert '\nENTRYPOINT ["convoy"]\n' in last


def steps(program):
    """Return the commands of the Dockerfile that begin with a program."""
    text = re.sub(r"\\\n\s*|--mount=\S+", "", DOCKERFILE.read_text())
    lines = [line for line in text.splitlines() if line.startswith("RUN ")]
    commands = [command.strip() for line in lines for command in line[4:].split("&&")]
    return [command for command in commands if command.startswith(program)]


def copied(folder):
    """Copy what the Dockerfile copies, from what .dockerignore leaves of the repository."""
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line[1:] for line in patterns if line.startswith("!")}
    ignored = [line.removeprefix("**/") for line in patterns if line.startswith("**/")]
    for line in re.findall(r"^COPY (.*)$", DOCKERFILE.read_text(), re.M):
        *names, _ = line.split()
        for name in names:
            assert name in kept, f".dockerignore leaves {name} out"
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*ignored))
            else:
                shutil.copy(ROOT / name, folder)
    assert not any(fnmatch.fnmatch(path.name, "*.so") for path in folder.rglob("*"))
    return folder


def run(command, folder, **variables):
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=variables or None,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_steps_build_and_install_convoy_with_its_kernels(tmp_path):
    source, wheels = tmp_path / "source", tmp_path / "wheels"
    source.mkdir()
    (build,) = steps("python -m pip wheel")
    (install,) = steps("python -m pip install")
    (name,) = steps("wheel=")
    run(f"'{sys.executable}' -m venv '{tmp_path / 'environment'}'", tmp_path)
    path = f"{tmp_path / 'environment/bin'}:/usr/local/bin:/usr/bin:/bin"
    variables = {"PATH": path, "HOME": str(tmp_path)}
    run(build.replace("/wheels", str(wheels)), copied(source), **variables)
    run(f"{name}; {install}".replace("/wheels", str(wheels)), tmp_path, **variables)
    shown = run("convoy doctor", tmp_path, **variables)
    assert re.search(r"cpu kernels +oneDNN", shown), shown
    assert str(tmp_path / "environment") in shown
