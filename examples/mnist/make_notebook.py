"""Write the notebook from README.md: `python3 make_notebook.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE, NOTEBOOK = FOLDER / "README.md", FOLDER / "walkthrough.ipynb"


def cells(page: str) -> list[tuple[str, str]]:
    """Return the text and the Python blocks of a page, in their order."""
    parts = re.split(r"^```python\n(.*?)^```\n", page, flags=re.MULTILINE | re.DOTALL)
    kinds = ["markdown", "code"] * len(parts)
    return [(kind, part.strip()) for kind, part in zip(kinds, parts, strict=False) if part.strip()]


def notebook(page: str) -> str:
    """Return a page as a notebook."""
    made = []
    for number, (kind, text) in enumerate(cells(page)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        made.append(cell | {"source": text.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": made,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(PAGE.read_text()))
