"""Changes of bytes and of JSON values by a seeded random generator."""

import copy

# Numbers at which lengths and sizes overflow.
EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
VALUES = (None, True, 0, -1, 1.5, 1 << 63, -(1 << 70), 1e308, float("nan"), "", "x", "/etc", [], {})


def mutate(rng, data):
    """Return bytes with one to four changes: flipped, overwritten, cut, repeated or inserted."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed) + 1)
        span = min(len(changed) - place, rng.choice((1, 2, 4, 16, 256)))
        kind = rng.randrange(6)
        if kind == 0 and span:
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            size = rng.choice((1, 2, 4))
            order = rng.choice(("big", "little"))
            edge = rng.choice(EDGES) & ((1 << 8 * size) - 1)
            changed[place : place + size] = edge.to_bytes(size, order)
        elif kind == 2:
            del changed[place : place + span]
        elif kind == 3:
            changed[place:place] = changed[place : place + span]
        elif kind == 4:
            changed[place:place] = rng.randbytes(span)
        else:
            del changed[place:]
    return bytes(changed)


def mutate_json(rng, value):
    """Return a JSON value in which one part is replaced, deleted or added."""
    changed = copy.deepcopy(value)
    part = changed
    while True:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        inner = [key for key in keys if isinstance(part[key], dict | list) and part[key]]
        if not inner or rng.random() < 0.3:
            break
        part = part[rng.choice(inner)]
    if not keys or rng.random() < 0.1:
        new = copy.deepcopy(rng.choice(VALUES))
        part.update({rng.choice(("x", "", "../x")): new}) if isinstance(
            part, dict
        ) else part.append(new)
    elif rng.random() < 0.3:
        del part[rng.choice(keys)]
    else:
        part[rng.choice(keys)] = copy.deepcopy(rng.choice(VALUES))
    return changed
