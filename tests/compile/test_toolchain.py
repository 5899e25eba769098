import os
from importlib import metadata

import jax
import pytest
from convoy.compile import toolchain
from convoy.compile.failures import TargetError
from convoy.compile.toolchain import CUDA_PLUGINS, CUDA_TOOLS, check_installed

CURRENT = {"libtpu": "0.0.42.1"} | dict.fromkeys(CUDA_PLUGINS, jax.__version__)
CURRENT |= dict.fromkeys(CUDA_TOOLS, "12.9.86")


@pytest.fixture
def installed(monkeypatch):
    """Make exactly these distributions the installed ones."""

    def install(versions):
        def version(name):
            if name not in versions:
                raise metadata.PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(toolchain.metadata, "version", version)
        requirement = 'libtpu==0.0.42.*; extra == "tpu"'
        monkeypatch.setattr(toolchain.metadata, "requires", lambda _: ["numpy>=2", requirement])

    return install


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_fitting_packages_pass(installed, platform):
    installed(CURRENT)
    check_installed(platform)


@pytest.mark.parametrize(
    ("platform", "missing", "command"),
    [
        ("tpu", "libtpu", f"pip install 'jax[tpu]=={jax.__version__}'"),
        ("gpu", "jax-cuda12-pjrt", f"pip install 'jax[cuda12-local]=={jax.__version__}' nvidia-"),
        ("gpu", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc-cu12 nvidia-cuda-runtime-cu12"),
    ],
)
def test_a_missing_package_names_the_command_that_installs_it(
    installed, platform, missing, command
):
    installed({name: version for name, version in CURRENT.items() if name != missing})
    with pytest.raises(TargetError) as error:
        check_installed(platform)
    message = str(error.value)
    assert f"the package {missing}, which is not installed" in message
    assert command in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("platform", "package", "version", "needed"),
    [
        ("tpu", "libtpu", "0.0.39", "0.0.42.*"),
        ("tpu", "libtpu", "0.0.420", "0.0.42.*"),
        ("gpu", "jax-cuda12-plugin", "0.9.0", jax.__version__),
    ],
)
def test_a_package_of_another_jax_names_the_version_that_fits(
    installed, platform, package, version, needed
):
    installed(CURRENT | {package: version})
    with pytest.raises(TargetError) as error:
        check_installed(platform)
    message = str(error.value)
    assert (
        f"{package} {version} does not fit JAX {jax.__version__}, which needs {needed}" in message
    )
    assert "pip install" in message


def test_what_native_code_writes_is_hidden(capfd):
    with toolchain.compiler_output_hidden():
        os.write(1, b"noise\n")
        os.write(2, b"noise\n")
    os.write(2, b"signal\n")
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "signal\n")
