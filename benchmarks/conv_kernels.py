"""Speed of CPU operations with and without Convoy's kernels, inside and outside of a device loop.

Run:    python benchmarks/conv_kernels.py     (ten minutes or more: JAX alone in a loop is slow)
Expect: ratios of 1 or more in every row; above 10 for weight gradients in a loop and for the
        gradient of max pooling.

Both variants are compiled first and then measured in turns, so that noise of the machine affects
both. A row shows the median over the rounds of (JAX alone / Convoy), and the lowest and highest
ratio. With `--cpu-time`, times are CPU seconds of the process, which are more reliable on a shared
machine; otherwise they are wall-clock seconds.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from convoy import cpu
from jax import lax

LOOP_STEPS = 2


@dataclass(frozen=True)
class Convolution:
    name: str
    batch: int
    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    groups: int = 1
    spatial: int = 2

    def __call__(self, x, w):
        axes = "DHW"[-self.spatial :]
        return lax.conv_general_dilated(
            x,
            w,
            (self.stride,) * self.spatial,
            "SAME",
            dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"),
            feature_group_count=self.groups,
        )

    def operands(self):
        x = _normal((self.batch, *(self.size,) * self.spatial, self.inputs))
        w = _normal((*(self.kernel,) * self.spatial, self.inputs // self.groups, self.outputs))
        return x, w


CONVOLUTIONS = [
    Convolution("MNIST, second layer", 64, 13, 32, 64, 3),
    Convolution("ResNet-8, first stage", 64, 32, 16, 16, 3),
    Convolution("ResNet-50, 3x3 at 56", 8, 56, 64, 64, 3),
    Convolution("ResNet-50, 1x1 at 14", 8, 14, 1024, 256, 1),
    Convolution("ResNet-50, 1x1 stride 2", 8, 56, 256, 512, 1, stride=2),
    Convolution("EfficientNet, depthwise 5x5", 8, 28, 240, 240, 5, groups=240),
    Convolution("CosmoFlow, 3-D", 2, 32, 16, 32, 3, spatial=3),
]


def max_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def average_pool(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def cases():
    """Yield (row, function, operands) for everything that is measured."""
    for convolution in CONVOLUTIONS:
        x, w = convolution.operands()
        y = jax.eval_shape(convolution, x, w)
        g = _normal(y.shape)
        yield f"{convolution.name}: forward", convolution, (x, w)
        yield f"{convolution.name}: input gradient", _pull_back(convolution, 0), (x, w, g)
        yield f"{convolution.name}: weight gradient", _pull_back(convolution, 1), (x, w, g)
        yield (
            f"{convolution.name}: weight gradient in a loop",
            _training_loop(convolution),
            (x, w, g),
        )
    for pool in (max_pool, average_pool):
        x = _normal((8, 112, 112, 64))
        g = _normal(jax.eval_shape(pool, x).shape)
        name = pool.__name__.replace("_", " ")
        yield f"{name} 3x3 stride 2: forward", pool, (x,)
        yield f"{name} 3x3 stride 2: gradient", _pull_back(pool, 0), (x, g)


def _pull_back(function: Callable, argument: int) -> Callable:
    def gradient(*operands):
        *primals, cotangent = operands
        return jax.vjp(function, *primals)[1](cotangent)[argument]

    return gradient


def _training_loop(convolution: Convolution) -> Callable:
    def loop(x, w, g):
        def step(w, _):
            _, pull_back = jax.vjp(convolution, x, w)
            return w - 1e-3 * pull_back(g)[1], None

        return lax.scan(step, w, None, length=LOOP_STEPS)[0]

    return loop


def _normal(shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def _compile(function, operands, *, kernels: bool):
    (cpu.enable if kernels else cpu.disable)()
    return jax.jit(lambda *a: function(*a)).lower(*operands).compile()


def measure(function, operands, rounds: int, clock: Callable[[], float]):
    """Return the seconds of each round, JAX alone and Convoy."""
    programs = [_compile(function, operands, kernels=on) for on in (False, True)]
    seconds = [[], []]
    for round_ in range(rounds + 1):
        for program, times in zip(programs, seconds, strict=True):
            start = clock()
            jax.block_until_ready(program(*operands))
            if round_:  # the first one pays for pages and caches
                times.append(clock() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="measure the process's CPU time")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    cpu.enable()
    print(cpu.status(), "\n")
    print("| operation | JAX alone, ms | Convoy, ms | ratio | lowest to highest |")
    print("|---|---|---|---|---|")
    for name, function, operands in cases():
        alone, ours = measure(function, operands, arguments.rounds, clock)
        ratios = [a / b for a, b in zip(alone, ours, strict=True)]
        print(
            f"| {name} | {1e3 * median(alone):.1f} | {1e3 * median(ours):.1f} "
            f"| {median(ratios):.1f} | {min(ratios):.1f} to {max(ratios):.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
