"""Builds README, docs/, and the pages of examples and benchmarks into one site: `make docs`.

The repository's own folder is the source, so that links between pages are the same here as in it.
"""

from collections.abc import Iterator
from typing import Any

project = "Convoy"
author = "the Convoy authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_design",
]
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "examples/*/README.md",
    "benchmarks/README.md",
    "benchmarks/results/*.md",
]

html_theme = "furo"
html_title = "Convoy"
html_show_copyright = False

# Headings are places that links can name, as on the pages that repositories show.
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
highlight_language = "none"
# Docstrings are Markdown, where words of code stand between single marks.
default_role = "code"
autodoc_typehints = "description"
autodoc_member_order = "bysource"


def blocks_of_code(lines: list[str]) -> Iterator[str]:
    """Turn Markdown's blocks of code into those that Sphinx knows, a part of what they follow."""
    inside = False
    for line in lines:
        if line.strip().startswith("```"):
            inside = not inside
            yield from ("", "    .. code-block:: python", "") if inside else ("",)
        else:
            yield f"        {line}" if inside else line


def rewrite_docstring(*event: Any) -> None:
    lines: list[str] = event[-1]
    lines[:] = blocks_of_code(lines)


def setup(app: Any) -> None:
    # Before those who read sections such as `Args`.
    app.connect("autodoc-process-docstring", rewrite_docstring, priority=1)
