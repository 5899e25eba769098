"""Parsing of long JSON texts in short steps.

Python's parser holds the GIL until the end of a text, so no other request is handled while it
parses megabytes. This parser calls it for parts of a text: for one element of a list, or for a run
of numbers in a list. Other threads can run in between. The result is the same.
"""

import json
import re
from typing import Any

# Characters of a list of numbers that are parsed at once, in about half a millisecond.
STEP = 1 << 13
# Values that are freed at once.
_FREED = 1 << 13

_space = re.compile(r"[ \t\n\r]*").match
_bracket_or_string = re.compile(r'[\[\]{}"]').search
_decode = json.JSONDecoder().raw_decode


def loads(text: str) -> Any:
    """Return the value of a JSON text, as `json.loads` does.

    Raises:
        json.JSONDecodeError: if it is not JSON.
        RecursionError: if it is nested too deeply.
    """
    value, position = _value(text, _skip(text, 0), 0)
    if position != len(text):
        raise json.JSONDecodeError("Extra data", text, position)
    return value


def free(value: Any, depth: int = 0) -> None:
    """Empty the outer lists of a parsed value in short steps, when it is no longer used.

    Python would free all numbers of a list at once, which takes 12 ms for a million.
    """
    if isinstance(value, dict):
        for entry in value.values():
            free(entry, depth + 1)
    if not isinstance(value, list):
        return
    if depth < 4 and value and isinstance(value[0], list | dict):
        for entry in value:
            free(entry, depth + 1)
    while value:
        del value[-_FREED:]


def _skip(text: str, position: int) -> int:
    """Return the position after white space."""
    found = _space(text, position)
    return position if found is None else found.end()


def _value(text: str, position: int, depth: int) -> tuple[Any, int]:
    """Return the value at a position, and the position after it and the white space that follows.

    Only the outer objects and lists are split, because they contain the samples of a request.
    """
    value: Any
    if depth < 4 and text.startswith("{", position):
        value, position = _object(text, position + 1, depth)
    elif depth < 4 and text.startswith("[", position):
        value, position = _list(text, position + 1, depth)
    else:
        value, position = _decode(text, position)
    return value, _skip(text, position)


def _object(text: str, position: int, depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    position = _skip(text, position)
    if text.startswith("}", position):
        return found, position + 1
    while True:
        if not text.startswith('"', position):
            message = "Expecting property name enclosed in double quotes"
            raise json.JSONDecodeError(message, text, position)
        key, position = _decode(text, position)
        position = _skip(text, position)
        if not text.startswith(":", position):
            raise json.JSONDecodeError("Expecting ':' delimiter", text, position)
        found[key], position = _value(text, _skip(text, position + 1), depth + 1)
        if text.startswith("}", position):
            return found, position + 1
        position = _after_comma(text, position)


def _list(text: str, position: int, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    position = _skip(text, position)
    if text.startswith("]", position):
        return found, position + 1
    while True:
        numbers, position = _numbers(text, position)
        found += numbers
        value, position = _value(text, position, depth + 1)
        found.append(value)
        if text.startswith("]", position):
            return found, position + 1
        position = _after_comma(text, position)


def _after_comma(text: str, position: int) -> int:
    if not text.startswith(",", position):
        raise json.JSONDecodeError("Expecting ',' delimiter", text, position)
    return _skip(text, position + 1)


def _numbers(text: str, position: int) -> tuple[list[Any], int]:
    """Return the numbers and words of a list up to a comma within the next step, if there are any.

    Damaged text is left to the parser of single values, which reports the position.
    """
    bracket = _bracket_or_string(text, position, position + STEP)
    limit = min(len(text), position + STEP) if bracket is None else bracket.start()
    end = text.rfind(",", position, limit)
    if end < 0:
        return [], position
    try:
        numbers: list[Any] = json.loads(f"[{text[position:end]}]")
    except json.JSONDecodeError:
        numbers = []
    return (numbers, _skip(text, end + 1)) if numbers else ([], position)
