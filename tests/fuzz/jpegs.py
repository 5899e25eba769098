"""Damaged JPEGs for the decoder of training data, which is native code."""

import random
from collections import Counter

import numpy as np
from convoy.data import jpeg
from convoy.data.jpeg import Box
from convoy.data.records import DamagedDataError

from .images import encoded
from .mutation import EDGES, mutate


class JpegFuzz:
    """Decodes parts of damaged JPEGs: inside of the image, outside of it, and of absurd sizes."""

    def __init__(self, seed):
        self.rng = random.Random(f"{seed}/JpegFuzz")
        self.outcomes = Counter()
        self.faults = []

    def run_one(self):
        rng = self.rng
        whole = encoded("JPEG", rng.randrange(12))
        header = jpeg.read_header(whole)
        data = self._damaged(whole, header.scan)
        if rng.random() < 0.7:
            top, left = rng.randrange(header.height), rng.randrange(header.width)
            height, width = header.height - top, header.width - left
            box = Box(top, left, rng.randint(1, height), rng.randint(1, width))
        else:
            sizes = (0, 1, 7, 8, 40, *(edge for edge in EDGES if edge < 1 << 31))
            box = Box(*(rng.choice(sizes) for _ in Box._fields))
        out = np.zeros((rng.randint(1, 40), rng.randint(1, 40), 3), np.uint8)
        try:
            jpeg.decode_part(data, box, out, flip=rng.random() < 0.5)
            outcome = "decoded"
        except DamagedDataError:
            outcome = "refused"
        except Exception as error:
            outcome = type(error).__name__
            self.faults.append(f"{error!r}: {box} of {data.hex()}")
        self.outcomes[outcome] += 1

    def _damaged(self, whole, scan):
        """Damage a JPEG anywhere, or only its compressed pixels, which then are all decoded."""
        if self.rng.random() < 0.4:
            return mutate(self.rng, whole)
        data = bytearray(whole)
        for _ in range(self.rng.randint(0, 4)):
            data[self.rng.randrange(scan, len(data) - 2)] = self.rng.randrange(256)
        return bytes(data)
