"""The pages that a reader follows, and the code and commands in them."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "benchmarks/README.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("examples/*/README.md"),
    ]
)
PROGRAMS = ("convoy", "poprun", "make", "python", "python3", ".venv/bin/python", "pip")
_FENCE = re.compile(r"^```([\w{}-]*)\n(.*?)^```", re.M | re.S)
_INDENTED = re.compile(r"^    (\S.*)$", re.M)
_INLINE = re.compile(r"`((?:convoy|poprun|make|python3?|pip) [^`]+)`")


class Block(NamedTuple):
    """Some code on a page."""

    language: str
    text: str


class Command(NamedTuple):
    """A command on a page, and the folder it is for; a whole one stands in a block."""

    page: Path
    words: list[str]
    whole: bool
    folder: Path

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {shlex.join(self.words)}"


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in _FENCE.findall(page.read_text())]


def commands() -> list[Command]:
    """Return every command on every page."""
    found = []
    for page in PAGES:
        rest = _FENCE.sub("", page.read_text())
        shown = [block.text for block in blocks(page) if block.language in ("", "bash", "sh")]
        for text in [*shown, "\n".join(_INDENTED.findall(rest))]:
            folder = page.parent
            for line in text.replace("\\\n", " ").splitlines():
                if line.startswith("cd "):
                    folder = ROOT / line.split()[1]
                elif line.split(maxsplit=1)[:1] and line.split()[0] in PROGRAMS:
                    words = shlex.split(line, comments=True)
                    found.append(Command(page, words, whole=True, folder=folder))
        for span in _INLINE.findall(re.sub(r"\s*\n\s*", " ", rest)):
            found.append(Command(page, shlex.split(span), whole=False, folder=page.parent))
    return found
