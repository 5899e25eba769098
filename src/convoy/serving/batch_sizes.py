"""Choice of the batch sizes in which a number of samples is computed.

Seven samples can run as one batch of eight with padding, or as batches of four, two and one. The
faster way depends on the device: eight samples take hardly longer than one on a GPU, but eight
times as long on a CPU. Each batch size is therefore timed when a model is loaded, and the
combination with the smallest total time is used.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

BATCH_SIZES = (1, 2, 4, 8, 16)
"""The batch sizes for which a model is exported, unless others are given."""
# Time per call in addition to the model's: joining requests, switching threads, splitting outputs.
CALL_SECONDS = 2e-4
# Fraction of the highest throughput that the efficient batch size must reach.
EFFICIENT = 0.9
TIMING_ROUNDS = 3
# Maximum number of runs of one batch size per round.
MAX_RUNS = 4


@dataclass(frozen=True)
class _Cover:
    """Batch sizes that together hold a number of samples, largest first, and their total time."""

    seconds: float
    sizes: tuple[int, ...]


class BatchSizes:
    """The batch sizes that a model was compiled for.

    Args:
        seconds: time of one batch, by batch size.
        limit: maximum batch size to use; the smallest one is always used.
        streams: number of batches that are computed at the same time.

    Attributes:
        largest: the largest batch size.
        efficient: the smallest batch size with nearly the highest throughput. Joining more requests
            than this only makes the first request wait for the last.
        throughput: the highest throughput of all streams together, in samples per second.
    """

    def __init__(
        self, seconds: Mapping[int, float], limit: int | None = None, streams: int = 1
    ) -> None:
        usable = [size for size in seconds if limit is None or size <= limit] or [min(seconds)]
        self.largest = max(usable)
        # The streams share one Python interpreter, so each call delays those of the others.
        throughputs = {
            size: streams * size / (seconds[size] + streams * CALL_SECONDS) for size in usable
        }
        self.throughput = max(throughputs.values())
        self.efficient = min(
            size for size in usable if throughputs[size] >= EFFICIENT * self.throughput
        )
        # Dynamic programming: the best cover of n samples is one batch and the best cover of the
        # others.
        covers = [_Cover(0.0, ())]
        for samples in range(1, self.largest + 1):
            choices = []
            for size in usable:
                others = covers[max(0, samples - size)]
                sizes = tuple(sorted((size, *others.sizes), reverse=True))
                choices.append(_Cover(seconds[size] + CALL_SECONDS + others.seconds, sizes))
            covers.append(min(choices, key=lambda cover: cover.seconds))
        self._covers = covers

    def cover(self, samples: int) -> tuple[int, ...]:
        """Return the batch sizes that compute some samples in the shortest time, largest first."""
        full, remaining = divmod(samples, self.largest)
        return self._covers[self.largest].sizes * full + self._covers[remaining].sizes


def measure(run: Callable[[int], object], sizes: Collection[int]) -> dict[int, float]:
    """Return the shortest time of a batch of each size, measured in several rounds.

    In a single round, a short load on the machine could make one size look slow, and this would
    affect the batching of all later requests.
    """
    seconds = dict.fromkeys(sizes, math.inf)
    for _ in range(TIMING_ROUNDS if sizes else 0):
        for size in sizes:
            for _ in range(min(MAX_RUNS, max(sizes) // size)):
                began = time.perf_counter()
                run(size)
                seconds[size] = min(seconds[size], time.perf_counter() - began)
    return seconds
