import json
import math
import random

import pytest
from convoy.serving import json_text

SPECIAL = [
    0,
    -1,
    1.5,
    1e300,
    2**70,
    True,
    False,
    None,
    "",
    'a"]b,',
    "\u00e9\n",
    math.inf,
    -math.inf,
]


def anything(rng, depth):
    kind = rng.randrange(6) if depth else 0
    if kind < 2:
        return rng.choice(SPECIAL)
    if kind == 2:
        return {rng.choice("abc"): anything(rng, depth - 1) for _ in range(rng.randrange(4))}
    if kind == 3:
        return [rng.randrange(1000) for _ in range(rng.randrange(40))]
    return [anything(rng, depth - 1) for _ in range(rng.randrange(6))]


@pytest.mark.parametrize("step", [1, 7, 64, 1 << 16])
def test_any_text_gives_what_pythons_parser_gives(monkeypatch, step):
    monkeypatch.setattr(json_text, "STEP", step)
    rng = random.Random(step)
    for _ in range(300):
        value = anything(rng, 6)
        text = json.dumps(value, indent=rng.choice([None, 1]))
        assert json_text.loads(text) == value
        place = rng.randrange(len(text))
        damaged = text[:place] + rng.choice('[]{},:"x1 ') + text[place + rng.randrange(2) :]
        try:
            expected = json.loads(damaged)
        except json.JSONDecodeError:
            with pytest.raises(json.JSONDecodeError):
                json_text.loads(damaged)
        else:
            assert repr(json_text.loads(damaged)) == repr(expected)


def test_special_numbers():
    assert math.isnan(json_text.loads("[1, NaN]")[1])
    for text in ("", "[1,]", "[,1]", "[1 2]", "{", '{"a"}', '{"a": 1,}', "{1: 2}", "[1] 2", "nan"):
        with pytest.raises(json.JSONDecodeError):
            json_text.loads(text)


@pytest.mark.parametrize("written", [1, 7, 64, 1 << 16])
def test_any_value_gives_what_python_writes(monkeypatch, written):
    monkeypatch.setattr(json_text, "_WRITTEN", written)
    rng = random.Random(written)
    for _ in range(300):
        value = anything(rng, 6)
        assert json_text.dumps(value) == json.dumps(value).encode()


def test_lists_are_freed_in_steps(monkeypatch):
    monkeypatch.setattr(json_text, "_FREED", 3)
    monkeypatch.setattr(json_text, "_SMALL", 1)
    value = json_text.loads('{"a": [[1, 2], [3, 4, 5, 6]], "b": [1, 2, 3, 4], "c": "d"}')
    rows = value["a"][:]
    json_text.free(value)
    assert rows == [[], []]
    assert value == {"a": [], "b": [], "c": "d"}


def test_values_that_are_nested_too_deeply_are_left_to_python():
    value = {}
    for _ in range(10_000):
        value = {"a": value}
    json_text.free(value)


def test_the_values_before_an_error_are_freed_in_steps(monkeypatch):
    freed, free = [], json_text.free
    monkeypatch.setattr(json_text, "free", lambda value: (freed.append(len(value)), free(value)))
    row = f"[{', '.join(['1'] * json_text.STEP)}]"
    with pytest.raises(json.JSONDecodeError):
        json_text.loads(f'{{"a": [{row}, {row}, ?')
    assert sorted(freed) == [0, 2, json_text.STEP, json_text.STEP]


def test_white_space_is_skipped_in_steps(monkeypatch):
    monkeypatch.setattr(json_text, "_SPACES", 3)
    for count in range(8):
        space = count * " "
        assert json_text.loads(f"{space}[{space}1{space},{space}2{space}]{space}") == [1, 2]
