"""Packages import only from the layers below their own, as drawn in docs/how-it-works.md."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/convoy"
PAGE = ROOT / "docs/how-it-works.md"
# The package itself; it offers `estimator`, which is built on its other public names.
FRONT = "convoy"
OFFERED_FROM_ABOVE = {"estimator"}


def drawn_layers() -> dict[str, int]:
    """Return the layer of every package, from the drawing: rows of names, bottom row first."""
    drawing = re.search(
        r"^## Packages and layers\n.*?^```\n(.*?)^```", PAGE.read_text(), re.M | re.S
    )
    assert drawing is not None
    rows = re.split(r"^ \+-+\+$", drawing[1], flags=re.M)
    return {
        name: height
        for height, row in enumerate(reversed(rows))
        for line in row.split("\n")
        if "|" in line
        for name in line.split("|")[1].split()
    }


def module_files() -> dict[str, Path]:
    """Return the files of all modules by their full names."""
    files = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


FILES = module_files()


def imported(path: Path) -> set[str]:
    """Return the modules of Convoy that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    found = set()
    for name in names:
        while name not in FILES and "." in name:
            name = name.rpartition(".")[0]
        if name in FILES:
            found.add(name)
    return found


def package(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else FRONT


def test_the_drawing_has_every_package():
    assert sorted(drawn_layers()) == sorted({package(module) for module in FILES})


def test_imports_go_down():
    layers = drawn_layers()
    wrong = []
    for module, path in FILES.items():
        own = package(module)
        allowed = {own} | (OFFERED_FROM_ABOVE if own == FRONT else set())
        for name in imported(path):
            if package(name) not in allowed and layers[package(name)] >= layers[own]:
                wrong.append(f"{module} imports {name}, which is not below it")
    assert not wrong


def test_only_the_bridge_reaches_past_the_public_names_of_keras():
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            private = [name for name in names if name.startswith("keras.src")]
            assert not private or package(module) == "keras_bridge", (
                f"{module} imports {private[0]}"
            )
