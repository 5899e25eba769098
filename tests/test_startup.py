"""What `import convoy` settles, each in a process of its own."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("KERAS", "CONVOY"))}


def run(program: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program], env=CLEAN | variables, capture_output=True, text=True
    )


def test_chooses_the_jax_backend_of_keras():
    done = run("import convoy, keras; print(keras.config.backend())")
    assert done.stdout.strip() == "jax"


def test_says_what_to_do_when_the_environment_names_another_backend():
    done = run("import convoy", KERAS_BACKEND="torch")
    assert "KERAS_BACKEND is 'torch'. Unset it, or set KERAS_BACKEND=jax." in done.stderr


def test_says_what_to_do_when_keras_runs_on_another_backend_already():
    done = run("import keras, convoy", KERAS_BACKEND="numpy")
    assert "Keras was imported with 'numpy'. Import convoy before keras" in done.stderr


def test_does_not_start_jax_nor_import_what_only_some_users_need():
    done = run(
        "import sys, convoy, jax\n"
        "jax.config.update('jax_num_cpu_devices', 5)  # refused once JAX runs\n"
        "print([m for m in ('tensorflow', 'torch', 'grain') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("count", [1, 3])
def test_splits_the_cpu_as_the_environment_says(count):
    done = run("import convoy, jax; print(len(jax.devices()))", CONVOY_DEVICES=str(count))
    assert done.stdout.strip() == str(count)
