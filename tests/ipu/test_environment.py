import os
import re
import subprocess
import sys

import pytest
from convoy import ipu
from convoy.ipu import environment

pytestmark = pytest.mark.integration


@pytest.fixture
def given(monkeypatch):
    def give(text):
        monkeypatch.setenv(environment.FLAGS, text)

    return give


def test_nothing_is_said_without_flags(given, caplog):
    given("")
    assert environment.read_flags() == environment.Flags()
    assert not caplog.records


def test_says_that_an_ipu_is_simulated(given, configure):
    assert not ipu.config.running_on_ipu_model()
    given("--use_ipu_model --max_infeed_threads=4")
    assert ipu.config.running_on_ipu_model()
    assert ipu.utils.running_on_ipu_model()
    configure(2)
    assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:0") == 2
    given("--use_ipu_model=false")
    assert not ipu.config.running_on_ipu_model()


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        ("select_ipus", [0], "have no numbers. Use auto_select_ipus"),
        ("version", "", "for example 'ipu2'"),
    ],
)
def test_a_simulated_ipu_is_chosen_by_count(given, path, value, match):
    given("--use_ipu_model")
    config = ipu.config.IPUConfig()
    setattr(config if path == "select_ipus" else config.ipu_model, path, value)
    with pytest.raises(ValueError, match=match):
        config.configure_ipu_system()


def test_names_once_what_has_no_effect(given, configure, caplog):
    given("--log_cycle_count=0 --use_synthetic_data --synthetic_data_initializer=random")
    for count in (1, 2):
        configure(count)
    said = [r.getMessage() for r in caplog.records if environment.FLAGS in r.getMessage()]
    assert said == [
        "No effect on these devices, and ignored in TF_POPLAR_FLAGS: --log_cycle_count, "
        "--synthetic_data_initializer, --use_synthetic_data."
    ]
    assert not ipu.utils.use_synthetic_data_for("infeed")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("--use_ipu_modle", r"--use_ipu_modle, .* Did you mean --use_ipu_model\?"),
        ("--wholly-other=1", r"--wholly-other, .* Leave it out\."),
        ("--help", r"read for --executable_cache_path, --use_ipu_model\. Accepted"),
    ],
)
def test_answers_unknown_flags_and_calls_for_help_in_one_line(given, caplog, text, advice):
    given(text)
    for _ in range(2):
        environment.read_flags()
    (said,) = caplog.records
    assert said.getMessage().startswith(environment.FLAGS)
    assert re.search(advice, said.getMessage())


@pytest.mark.parametrize(
    "text", ["--max_infeed_threads=many", "--use_ipu_model=4", "--executable_cache_path"]
)
def test_refuses_values_that_a_flag_cannot_have(given, text):
    given(text)
    with pytest.raises(ValueError, match=rf"TF_POPLAR_FLAGS has {text}\. Write --"):
        environment.read_flags()


def test_reports_are_enabled_by_a_variable_or_the_configuration(monkeypatch):
    options = {"autoReport.all": "true", "autoReport.directory": "a"}
    assert environment.report_folder({}) is None
    assert str(environment.report_folder(options)) == "a"
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.directory": "b"}')
    assert str(environment.report_folder(options)) == "b"
    assert environment.report_folder(None) is None
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all": "true"}')
    assert str(environment.report_folder(None)) == "."
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", "all")
    with pytest.raises(ValueError, match="is not JSON"):
        environment.report_folder(None)


SCRIPT = """
from convoy import ipu
import jax.numpy as jnp

jnp.arange(3).sum()  # JAX has looked at its usual folder by now
with ipu.scopes.ipu_scope("/device:IPU:0"):
    print(ipu.ipu_compiler.compile(lambda x: x * 2, [jnp.float32(21)])[0])
"""


def test_programs_are_kept_where_a_flag_says(tmp_path):
    kept = tmp_path / "kept"
    here = {k: v for k, v in os.environ.items() if k != "CONVOY_COMPILATION_CACHE"}
    surroundings = here | {
        "TF_POPLAR_FLAGS": f"--executable_cache_path={kept}",
        "XDG_CACHE_HOME": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout == "42.0\n", done.stderr
    assert list(kept.iterdir())
