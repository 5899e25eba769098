"""The pages that a reader follows, and the code and commands in them."""

import re
import shlex
import textwrap
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
PROGRAMS = ("convoy", "poprun", "make", "python", "python3", "pip", "curl")
# Code between fences, or lines that are indented.
_BLOCK = re.compile(r"^```([\w{}-]*)\n(.*?)^```|((?:^    \S[^\n]*\n)+)", re.M | re.S)
_VARIABLE = re.compile(r"([A-Z_]+)=(.*)", re.S)
_INLINE = re.compile(r"`((?:convoy|poprun|make|python3?|pip) [^`]+)`")


class Block(NamedTuple):
    """Some code on a page."""

    language: str
    text: str


class Command(NamedTuple):
    """A command on a page.

    Attributes:
        page: on which it is.
        line: as it stands there.
        words: program and arguments.
        variables: what is set in front of it.
        whole: whether it stands in a block, and not in a sentence.
        folder: which it is for.
    """

    page: Path
    line: str
    words: list[str]
    variables: dict[str, str]
    whole: bool
    folder: Path

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.line}"

    @property
    def program(self) -> str:
        """Its first word, without the environment that it is in."""
        return self.words[0].removeprefix(".venv/bin/")


def blocks(page: Path) -> list[Block]:
    """Return all code on a page, in order."""
    return [
        Block(language, text or textwrap.dedent(indented))
        for language, text, indented in _BLOCK.findall(page.read_text())
    ]


def commands_of(page: Path, block: Block) -> list[Command]:
    """Return the commands in a block; none if it is something else."""
    found = []
    folder = page.parent
    if block.language not in ("", "bash", "sh"):
        return []
    for line in re.sub(r"\s*\\\n\s*", " ", block.text).splitlines():
        if line.startswith("cd "):
            folder = ROOT / line.split()[1]
        elif command := _read(page, line, whole=True, folder=folder):
            found.append(command)
    return found


def commands() -> list[Command]:
    """Return every command on every page."""
    found = []
    for page in PAGES:
        for block in blocks(page):
            found += commands_of(page, block)
        rest = re.sub(r"\s*\n\s*", " ", _BLOCK.sub("", page.read_text()))
        read = [
            _read(page, span, whole=False, folder=page.parent) for span in _INLINE.findall(rest)
        ]
        found += filter(None, read)
    return found


def _read(page: Path, line: str, *, whole: bool, folder: Path) -> Command | None:
    """Return the command of a line; nothing if it does not begin with a program."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # A drawing, or a sentence with an apostrophe.
        return None
    variables = {}
    while words and (variable := _VARIABLE.fullmatch(words[0])):
        variables[variable[1]] = variable[2]
        words = words[1:]
    if ">" in words:  # what it prints goes to a file
        words = words[: words.index(">")]
    command = Command(page, line.split("  #")[0].strip(), words, variables, whole, folder)
    return command if words and command.program in PROGRAMS else None
