import os
import subprocess
import sys

import jax
import pytest
from convoy import compilation_cache

pytestmark = pytest.mark.integration

PROGRAM = """
import convoy, jax
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.jit(lambda x: x * 2 + 1)(3.0)
print(jax.config.jax_compilation_cache_dir)
"""


@pytest.fixture
def no_folder():
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def run(**variables):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("CONVOY", "JAX"))}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=clean | variables,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_programs_are_kept_in_the_users_cache_folder(tmp_path):
    folder = run(XDG_CACHE_HOME=str(tmp_path))
    assert folder.startswith(str(tmp_path / "convoy" / "programs"))
    assert any((tmp_path / "convoy").rglob("*cache*"))


@pytest.mark.parametrize("value", ["0", "false"])
def test_can_be_turned_off(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    assert run(XDG_CACHE_HOME=str(tmp_path), CONVOY_COMPILATION_CACHE=value) == "None"
    assert not (tmp_path / "convoy").exists()
    assert not (tmp_path / value).exists()


def test_can_be_put_elsewhere(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    assert run(CONVOY_COMPILATION_CACHE=str(elsewhere)) == str(elsewhere)


def test_leaves_a_folder_that_the_user_chose_for_jax(tmp_path):
    chosen = str(tmp_path / "chosen")
    assert run(JAX_COMPILATION_CACHE_DIR=chosen) == chosen


def test_a_folder_is_for_one_kind_of_cpu(monkeypatch, no_folder):
    here = compilation_cache.folder()
    monkeypatch.setattr(compilation_cache.platform, "machine", lambda: "riscv64")
    assert compilation_cache.folder() != here
