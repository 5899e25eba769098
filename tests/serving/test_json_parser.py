import itertools
import json
import math
import random
import threading
import time

import pytest
from convoy.serving import json_parser

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
    monkeypatch.setattr(json_parser, "STEP", step)
    rng = random.Random(step)
    for _ in range(300):
        value = anything(rng, 6)
        text = json.dumps(value, indent=rng.choice([None, 1]))
        assert json_parser.loads(text) == value
        place = rng.randrange(len(text))
        damaged = text[:place] + rng.choice('[]{},:"x1 ') + text[place + rng.randrange(2) :]
        try:
            expected = json.loads(damaged)
        except json.JSONDecodeError:
            with pytest.raises(json.JSONDecodeError):
                json_parser.loads(damaged)
        else:
            assert repr(json_parser.loads(damaged)) == repr(expected)


def test_special_numbers():
    assert math.isnan(json_parser.loads("[1, NaN]")[1])
    for text in ("", "[1,]", "[,1]", "[1 2]", "{", '{"a"}', '{"a": 1,}', "{1: 2}", "[1] 2", "nan"):
        with pytest.raises(json.JSONDecodeError):
            json_parser.loads(text)


@pytest.mark.parametrize("shape", ["flat", "rows"])
def test_other_threads_run_while_a_long_text_is_parsed(shape):
    row = ",".join(["0.5"] * 1000)
    text = f"[{','.join([f'[{row}]' if shape == 'rows' else row] * 2000)}]"
    turns, done = [], threading.Event()

    def count():
        while not done.is_set():
            turns.append(time.perf_counter())
            time.sleep(0.001)

    def longest_wait(parse):
        turns.clear()
        done.clear()
        other = threading.Thread(target=count)
        other.start()
        parse(text)
        done.set()
        other.join()
        return max(b - a for a, b in itertools.pairwise(turns))

    whole = min(longest_wait(json.loads) for _ in range(3))
    assert min(longest_wait(json_parser.loads) for _ in range(3)) < whole / 3


def test_lists_are_freed_in_steps(monkeypatch):
    monkeypatch.setattr(json_parser, "_FREED", 3)
    value = json_parser.loads('{"a": [[1, 2], [3, 4, 5, 6]], "b": [1, 2, 3, 4], "c": "d"}')
    rows = value["a"][:]
    json_parser.free(value)
    assert rows == [[], []]
    assert value == {"a": [], "b": [], "c": "d"}
