"""Creation of an environment for each peer, once, in a folder under `.venv-peers`.

    .venv/bin/python -m benchmarks.peers.environments

Keras and JAX have the versions of Convoy's own environment, so that differences are due to the
programs and not to releases.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-peers"
CACHE = FOLDER / "cache"
STAMP = "requirements.txt"
OURS = "convoy"


def requirements() -> dict[str, list[str]]:
    """Return what pip installs into each environment."""
    keras, jax = (f"{name}=={metadata.version(name)}" for name in ("keras", "jax"))
    return {
        "keras-jax": [jax, keras],
        "tensorflow": ["tensorflow-cpu", keras],
        # This release's wheel is the one for CPUs. onnx writes the model that ONNX Runtime reads.
        "torch": ["torch==2.13.0", "pillow", keras, "onnx", "onnxscript"],
        "onnxruntime": ["onnxruntime"],
        "openvino": ["openvino"],
    }


def python(name: str) -> Path:
    """Return the interpreter of an environment; Convoy's is the one that runs this."""
    return Path(sys.executable) if name == OURS else FOLDER / name / "bin" / "python"


def is_built(name: str, wanted: list[str]) -> bool:
    stamp = FOLDER / name / STAMP
    return stamp.is_file() and stamp.read_text().split() == wanted


def build(name: str) -> str:
    """Build an environment unless it is there already. Return what went wrong, or nothing."""
    if name == OURS:
        return ""
    wanted = requirements()[name]
    if is_built(name, wanted):
        return ""
    print(f"Building {FOLDER.name}/{name} (once): {' '.join(wanted)}", flush=True)
    pip = [str(python(name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        _call([sys.executable, "-m", "venv", "--clear", str(FOLDER / name)])
        _call([*pip, *wanted])
    except (OSError, subprocess.CalledProcessError) as error:
        return _reason(error)
    (FOLDER / name / STAMP).write_text("\n".join(wanted) + "\n")
    return ""


def _call(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _reason(error: Exception) -> str:
    """Return pip's line with the reason, or the last line."""
    lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
    errors = [line for line in lines if line.startswith("ERROR")]
    return f"its environment could not be built: {(errors or lines)[-1].strip()}"


def main() -> None:
    for name in requirements():
        print(f"{name:12} {build(name) or 'ready'}")


if __name__ == "__main__":
    main()
