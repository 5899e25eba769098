"""Parsing and writing of long JSON texts in short steps.

Python's parser holds the GIL until the end of a text, so no other request is handled while it
parses megabytes. `loads` calls it for parts of a text: for a short value, or for a run of numbers
in a list. Other threads run in between. The result is the same. `dumps` does this for writing.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

from convoy.serving.gil import let_others_run

# Characters that are parsed at once, in about a tenth of a millisecond.
STEP = 1 << 11
# White space that is skipped at once.
_SPACES = 1 << 16
# Values that are written at once, and entries of a list that are freed at once.
_WRITTEN = 1 << 8
_FREED = 1 << 10
# Lists of about this number of values are freed with the list that they are in.
_SMALL = 16

_space = re.compile(r"[ \t\n\r]*").match
_bracket_or_string = re.compile(r'[\[\]{}"]').search
_decode = json.JSONDecoder().raw_decode


def loads(text: str) -> Any:
    """Return the value of a JSON text, as `json.loads` does.

    Raises:
        json.JSONDecodeError: if it is not JSON.
        RecursionError: if it is nested too deeply.
    """
    value, position = _value(text, _skip(text, 0))
    if position != len(text):
        raise json.JSONDecodeError("Extra data", text, position)
    return value


def dumps(value: Any) -> bytes:
    """Return the JSON text of a value, as `json.dumps` does.

    All values of a list should have about the same length.
    """
    return b"".join(text.encode() for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    """Yield the parts of a value's text."""
    let_others_run()
    if isinstance(value, dict):
        before = "{"
        for key, entry in value.items():
            yield f"{before}{json.dumps(key)}: "
            yield from _texts(entry)
            before = ", "
        yield "}" if value else "{}"
    elif isinstance(value, list) and _size(value) > _WRITTEN:
        count, before = _WRITTEN // _size(value[0]), "["
        for start in range(0, len(value), max(1, count)):
            yield before
            if count:
                yield json.dumps(value[start : start + count])[1:-1]
                let_others_run()
            else:
                yield from _texts(value[start])
            before = ", "
        yield "]"
    else:
        yield json.dumps(value)


def _size(value: Any) -> int:
    """Return the approximate number of values in nested lists."""
    size = 1
    while isinstance(value, list) and value:
        size *= len(value)
        value = value[0]
    return size


def free(value: Any) -> None:
    """Empty the lists of a parsed value in short steps, when it is no longer used.

    Python would free all numbers of a list at once, which takes 12 ms for a million.
    """
    # The parser may accept values that are nested more deeply than this function can call itself.
    with contextlib.suppress(RecursionError):
        if isinstance(value, dict):
            for entry in value.values():
                free(entry)
        elif isinstance(value, list):
            while value:
                last = value[-_FREED:]
                for entry in last if isinstance(last[0], list | dict) else ():
                    if isinstance(entry, dict) or _size(entry) > _SMALL:
                        free(entry)
                del value[-_FREED:]
                let_others_run()


def empty(values: list[Any]) -> None:
    """Remove all values of a list in short steps."""
    while values:
        del values[-_FREED:]
        let_others_run()


def _skip(text: str, position: int) -> int:
    """Return the position after white space."""
    while True:
        found = _space(text, position, position + _SPACES)
        end = position if found is None else found.end()
        if end < position + _SPACES:
            return end
        position = end
        let_others_run()


def _value(text: str, position: int) -> tuple[Any, int]:
    """Return the value at a position, and the position after it and the white space that follows.

    Objects and lists that are longer than a step are split.
    """
    value: Any
    let_others_run()
    if text.startswith(("{", "["), position):
        try:
            value, length = _decode(text[position : position + STEP])
            position += length
        except json.JSONDecodeError:
            split = _object if text.startswith("{", position) else _list
            value, position = split(text, position + 1)
    else:
        value, position = _decode(text, position)
    return value, _skip(text, position)


def _object(text: str, position: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    try:
        return found, _add_entries(text, _skip(text, position), found)
    except BaseException:
        free(found)
        raise


def _add_entries(text: str, position: int, found: dict[str, Any]) -> int:
    """Add the entries of an object, and return the position after it."""
    if text.startswith("}", position):
        return position + 1
    while True:
        if not text.startswith('"', position):
            message = "Expecting property name enclosed in double quotes"
            raise json.JSONDecodeError(message, text, position)
        key, position = _decode(text, position)
        position = _skip(text, position)
        if not text.startswith(":", position):
            raise json.JSONDecodeError("Expecting ':' delimiter", text, position)
        found[key], position = _value(text, _skip(text, position + 1))
        if text.startswith("}", position):
            return position + 1
        position = _after_comma(text, position)


def _list(text: str, position: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    try:
        return found, _add_values(text, _skip(text, position), found)
    except BaseException:
        free(found)
        raise


def _add_values(text: str, position: int, found: list[Any]) -> int:
    """Add the values of a list, and return the position after it."""
    if text.startswith("]", position):
        return position + 1
    while True:
        values, position = _short_values(text, position)
        found += values
        value, position = _value(text, position)
        found.append(value)
        if text.startswith("]", position):
            return position + 1
        position = _after_comma(text, position)


def _after_comma(text: str, position: int) -> int:
    if not text.startswith(",", position):
        raise json.JSONDecodeError("Expecting ',' delimiter", text, position)
    return _skip(text, position + 1)


def _short_values(text: str, position: int) -> tuple[list[Any], int]:
    """Return the values of a list within the next step, up to a comma, if there are any.

    They are numbers and words, or lists of these. Damaged text is left to the parser of single
    values, which reports the position.
    """
    bracket = _bracket_or_string(text, position, position + STEP)
    limit = min(len(text), position + STEP) if bracket is None else bracket.start()
    end = text.rfind(",", position, limit)
    if end < 0:
        # Deeper lists may end there too; these are not valid on their own.
        end = text.rfind("],", position, position + STEP) + 1
    if end <= position:
        return [], position
    try:
        values: list[Any] = json.loads(f"[{text[position:end]}]")
    except json.JSONDecodeError:
        values = []
    return (values, _skip(text, end + 1)) if values else ([], position)
