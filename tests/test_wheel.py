"""The wheel of `make wheel`: it runs on machines without a compiler, with the native kernels."""

import json
import os
import re
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from tests import parts

ROOT = Path(__file__).resolve().parents[1]
STEP = Path(__file__).with_name("wheel_step.py")
PYTHONS = ("3.11", "3.12", "3.13")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="wheels with kernels are for Linux"),
    parts.needs("the native CPU kernels"),
    parts.needs("libjpeg-turbo"),
]


def run(*words, folder, **variables):
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=os.environ | {"CONVOY_COMPILATION_CACHE": "0"} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel; this environment has what `make setup` installs."""
    folder = tmp_path_factory.mktemp("dist")
    programs = Path(sys.executable).parent
    options = [f"BIN={programs}", f"DIST={folder}", f"UNREPAIRED={folder / 'unrepaired'}"]
    run("make", "--assume-old", "setup", *options, "wheel", folder=ROOT)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module", params=PYTHONS)
def programs(request, wheel, tmp_path_factory):
    """The programs of an environment with the wheel, which was installed without a compiler."""
    folder = tmp_path_factory.mktemp("clean")
    run(_interpreter(request.param), "-m", "venv", folder, folder=folder)
    found = folder / "bin"
    install = [found / "pip", "install", "--quiet", "--only-binary", ":all:", wheel]
    run(*install, folder=folder, PATH=str(found))
    return found


def _interpreter(version):
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    words = [f"python{version}", "-c", "import sys; print(sys.executable)"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"there is no Python {version}")


def libraries(wheel):
    """Return the shared libraries of the wheel by their names."""
    archive = zipfile.ZipFile(wheel)
    return {name: archive.read(name) for name in archive.namelist() if ".so" in Path(name).name}


def dynamic(content, tag):
    """Return the values of a tag in the dynamic section of a library."""
    # It comes with auditwheel.
    from elftools.elf.elffile import ELFFile

    section = ELFFile(BytesIO(content)).get_section_by_name(".dynamic")
    attribute = {"DT_NEEDED": "needed", "DT_RUNPATH": "runpath", "DT_RPATH": "rpath"}[tag]
    return {getattr(entry, attribute) for entry in section.iter_tags(tag)}


def test_its_tag_is_that_of_any_python_on_most_linux_systems(wheel):
    tag = re.fullmatch(r"keras_convoy-[\d.]+-py3-none-(manylinux_2_\d+_x86_64)\.whl", wheel.name)
    assert tag is not None, wheel.name
    shown = run(Path(sys.executable).with_name("auditwheel"), "show", wheel, folder=wheel.parent)
    # auditwheel counts the two libraries that are not in the wheel under their own package or name.
    assert f'constrains the platform tag to "{tag[1]}"' in " ".join(shown.split())


def test_it_has_the_native_parts_and_what_they_need_but_not_onednn(wheel):
    found = libraries(wheel)
    assert {"libconvoy_cpu.so", "libgomp.so.1", "libconvoy_jpeg.so"} <= {
        Path(name).name for name in found
    }
    assert not any("dnnl" in name for name in found)
    own = {Path(name).name for name in found}
    system = r"lib(c|m|dl|pthread|gcc_s)\.so\.\d+|ld-linux-x86-64\.so\.2"
    for name, content in found.items():
        others = dynamic(content, "DT_NEEDED") - own
        assert {n for n in others if not re.fullmatch(system, n)} <= {"libdnnl.so.3"}, name


def test_nothing_in_it_names_the_machine_that_built_it(wheel):
    for name, content in libraries(wheel).items():
        paths = dynamic(content, "DT_RUNPATH") | dynamic(content, "DT_RPATH")
        assert all(path.startswith("$ORIGIN") for path in paths), (name, paths)
        assert str(ROOT).encode() not in content, name


def test_it_has_the_licences_of_the_libraries_in_it(wheel):
    names = {Path(name).name for name in zipfile.ZipFile(wheel).namelist() if "licenses/" in name}
    assert names >= {"LICENSE", "GPL-3.0.txt", "libgomp.txt", "libjpeg-turbo.txt"}


def check_step(shown, programs):
    step = json.loads(shown.splitlines()[-1])
    assert Path(step["package"]).is_relative_to(programs.parent)
    assert step["kernels"].startswith("CPU kernels: oneDNN"), step
    assert "convoy_convolution" in step["program"]
    assert step["decodes_images"]
    for ours, stock in zip(step["ours"], step["stock"], strict=True):
        assert ours == pytest.approx(stock, rel=1e-5, abs=1e-5)
    return step


def test_without_a_compiler_a_step_runs_on_the_kernels_and_equals_stock_keras(programs, tmp_path):
    alone = {"PATH": str(programs)}
    assert "problems       none" in run(programs / "convoy", "doctor", folder=tmp_path, **alone)
    check_step(run(programs / "python", STEP, folder=tmp_path, **alone), programs)


@parts.needs("mount")
def test_a_system_without_openmp_uses_that_of_the_wheel(programs, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("hiding a library of the system needs root")
    hidden = [
        file for folder in ("/usr/lib", "/usr/lib64") for file in Path(folder).rglob("libgomp.so.1")
    ]
    mounts = [f"mount --bind /dev/null {file}" for file in {file.resolve() for file in hidden}]
    script = " && ".join([*mounts, 'exec "$@"'])
    shown = run(
        "unshare", "-m", "sh", "-c", script, "sh", programs / "python", STEP, folder=tmp_path
    )
    assert Path(check_step(shown, programs)["openmp"]).is_relative_to(programs.parent)
