"""Where reports go, by Graphcore's options."""

from __future__ import annotations

import json
import os
from pathlib import Path

from convoy.ipu.config import IPUConfig


def report_folder(options: IPUConfig | None) -> Path | None:
    """Return where reports go, if they are asked for.

    The variable `POPLAR_ENGINE_OPTIONS` counts more than `compilation_poplar_options`.

    Raises:
        ValueError: if the variable is not JSON.
    """
    words = dict(options.compilation_poplar_options) if options is not None else {}
    text = os.environ.get("POPLAR_ENGINE_OPTIONS", "")
    if text:
        try:
            words |= json.loads(text)
        except (ValueError, TypeError):
            raise ValueError(
                f'POPLAR_ENGINE_OPTIONS={text!r} is not JSON such as {{"autoReport.all":"true"}}.'
            ) from None
    asked = ("autoReport.all", "autoReport.outputExecutionProfile", "autoReport.outputGraphProfile")
    if not any(str(words.get(name, "")).lower() == "true" for name in asked):
        return None
    return Path(words.get("autoReport.directory", "."))
