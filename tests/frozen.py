"""Golden text files that hold what users rely on, so that each change to it is a decision.

A test builds a text and compares it with the file through the fixture `frozen`:

    def test_the_flags_are_those_in_the_golden_file(frozen):
        frozen("train_flags", "\n".join(flags))

After a deliberate change, `make freeze` (`pytest --update-frozen`) writes the files again; their
difference belongs into the same commit.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Frozen:
    """A comparison with golden files.

    Attributes:
        update: whether files are written instead of compared.
        folder: location of the files.
    """

    update: bool
    folder: Path = GOLDEN

    def __call__(self, name: str, text: str) -> None:
        """Compare a text with `<name>.txt`.

        Raises:
            AssertionError: if they differ; it shows the difference.
        """
        path = self.folder / f"{name}.txt"
        text = text.rstrip() + "\n"
        if self.update:
            path.write_text(text)
            return
        golden = path.read_text().splitlines() if path.exists() else []
        changes = list(
            difflib.unified_diff(golden, text.splitlines(), "golden", "now", lineterm="", n=0)
        )
        assert not changes, (
            f"{path.name} does not describe what is there now. Undo the change, or, if it is "
            "meant, run `make freeze` and commit the file:\n" + "\n".join(changes)
        )
