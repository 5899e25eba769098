"""A weight update of ResNet-50 in plain JAX and by Convoy, both compiled for a target.

    python benchmarks/plain_jax_resnet50.py --target tpu:v5e:4x4

Both have the same network ("v1.5", mixed bfloat16, batch statistics of each replica), optimizer
(SGD with Nesterov momentum), micro-batch and accumulation. It should show the same collectives and
the memory of both within 10 %. Needs the packages of `pip install 'keras-convoy[targets]'`; about
ten minutes on two cores. `--side 64` and `--blocks 1 1 1 1` compile a smaller one.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import convoy
import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy.compile.analysis import all_instructions, find_collectives
from convoy.compile.console import Console
from convoy.compile.session import compile_run
from convoy.compile.targets import Target, parse_target
from convoy.compile.toolchain import compiler_options, compiler_output_hidden, open_target
from convoy.compile_target import CompileTarget
from convoy.report.hlo import Program
from convoy.report.memory_timeline import by_kind
from convoy.train.models.resnet import EPSILON, FILTERS, resnet
from jax.sharding import Mesh, NamedSharding, PartitionSpec

CLASSES, RATE, MOMENTUM, DECAY = 1000, 0.1, 0.9, 0.99
Tree = Any


def convolution(
    parameters: Tree, x: jax.Array, stride: int = 1, padding: str = "SAME"
) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x,
        parameters["kernel"].astype(x.dtype),
        (stride, stride),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def normalization(parameters: Tree, statistics: Tree, x: jax.Array) -> tuple[jax.Array, Tree]:
    wide = x.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    variance = jnp.square(wide).mean((0, 1, 2)) - jnp.square(mean)
    scale = parameters["scale"] * jax.lax.rsqrt(variance + EPSILON)
    out = x * scale.astype(x.dtype) + (parameters["offset"] - mean * scale).astype(x.dtype)
    new = {"mean": mean, "variance": variance}
    return out, jax.tree.map(lambda old, now: DECAY * old + (1 - DECAY) * now, statistics, new)


class Network:
    """The forward pass; the first call makes the parameters as zeros."""

    def __init__(self, blocks: list[int]) -> None:
        self.blocks = blocks

    def __call__(self, parameters: Tree, statistics: Tree, x: jax.Array) -> tuple[jax.Array, Tree]:
        new: dict[str, Tree] = {}

        def unit(name: str, x: jax.Array, stride: int = 1, padding: str = "SAME") -> jax.Array:
            x = convolution(parameters[name], x, stride, padding)
            x, new[name] = normalization(parameters[name], statistics[name], x)
            return x

        x = x.astype(jnp.bfloat16) / 255
        x = jax.nn.relu(unit("stem", jnp.pad(x, ((0, 0), (3, 3), (3, 3), (0, 0))), 2, "VALID"))
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")
        for stack, count in enumerate(self.blocks):
            for block in range(count):
                name, stride = f"{stack}.{block}", 2 if stack and not block else 1
                shortcut = x if block else unit(f"{name}.0", x, stride)
                x = jax.nn.relu(unit(f"{name}.1", x))
                x = jax.nn.relu(unit(f"{name}.2", x, stride))
                x = jax.nn.relu(shortcut + unit(f"{name}.3", x))
        pooled = x.mean((1, 2)).astype(jnp.float32)
        return pooled @ parameters["head"]["kernel"] + parameters["head"]["bias"], new

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all kernels."""
        found, channels = {"stem": (7, 7, 3, FILTERS[0])}, FILTERS[0]
        for stack, count in enumerate(self.blocks):
            filters = FILTERS[stack]
            for block in range(count):
                name = f"{stack}.{block}"
                if not block:
                    found[f"{name}.0"] = (1, 1, channels, 4 * filters)
                found[f"{name}.1"] = (1, 1, channels, filters)
                found[f"{name}.2"] = (3, 3, filters, filters)
                found[f"{name}.3"] = (1, 1, filters, 4 * filters)
                channels = 4 * filters
        return found

    def state(self) -> tuple[Tree, Tree]:
        """Return parameters and statistics, as shapes."""
        vector = lambda size: jax.ShapeDtypeStruct((size,), jnp.float32)  # noqa: E731
        parameters, statistics = {}, {}
        for name, shape in self.shapes().items():
            kernel = jax.ShapeDtypeStruct(shape, jnp.float32)
            parameters[name] = {"kernel": kernel} | dict.fromkeys(
                ("scale", "offset"), vector(shape[-1])
            )
            statistics[name] = dict.fromkeys(("mean", "variance"), vector(shape[-1]))
        head = jax.ShapeDtypeStruct((4 * FILTERS[len(self.blocks) - 1], CLASSES), jnp.float32)
        parameters["head"] = {"kernel": head, "bias": vector(CLASSES)}
        return parameters, statistics


def update(network: Network, state: Tree, images: jax.Array, labels: jax.Array) -> tuple[Tree, Any]:
    """Return the state after a weight update on the micro-batches of one replica, and the loss."""
    parameters, statistics, velocity = state

    def loss(parameters: Tree, statistics: Tree, x: jax.Array, y: jax.Array) -> tuple[Any, Tree]:
        logits, statistics = network(parameters, statistics, x)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)
        return -picked.mean(), statistics

    def micro_batch(carry: Tree, batch: Tree) -> tuple[Tree, None]:
        total, statistics, gradients = carry
        (value, statistics), new = jax.value_and_grad(loss, has_aux=True)(
            parameters, statistics, *batch
        )
        return (total + value, statistics, jax.tree.map(jnp.add, gradients, new)), None

    zeros = jax.tree.map(jnp.zeros_like, parameters)
    first = jnp.float32(0), statistics, zeros
    (total, statistics, gradients), _ = jax.lax.scan(micro_batch, first, (images, labels))
    total, statistics, gradients = jax.lax.pmean((total, statistics, gradients), "replica")
    gradients = jax.tree.map(lambda gradient: gradient / len(images), gradients)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v - RATE * g, velocity, gradients)
    parameters = jax.tree.map(
        lambda p, v, g: p + MOMENTUM * v - RATE * g, parameters, velocity, gradients
    )
    return (parameters, statistics, velocity), total / len(images)


def compile_plain(target: Target, opened: CompileTarget, options: argparse.Namespace) -> Tree:
    """Compile the step in plain JAX, and return its figures."""
    mesh = Mesh(np.array(opened.devices), ("replica",))
    replicated, by_sample = PartitionSpec(), PartitionSpec(None, "replica")

    def placed(leaf: jax.ShapeDtypeStruct, spec: PartitionSpec = replicated) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    network = Network(options.blocks)
    parameters, statistics = network.state()
    state = jax.tree.map(placed, (parameters, statistics, parameters))
    samples = options.micro_batch * mesh.size
    shape = options.accumulation, samples, options.side, options.side, 3
    images = placed(jax.ShapeDtypeStruct(shape, jnp.uint8), by_sample)
    labels = placed(jax.ShapeDtypeStruct(shape[:2], jnp.int32), by_sample)
    step = jax.shard_map(
        partial(update, network),
        mesh=mesh,
        in_specs=(replicated, by_sample, by_sample),
        out_specs=replicated,
        check_vma=False,
    )
    started = time.perf_counter()
    lowered = jax.jit(step, donate_argnums=0).lower(state, images, labels)
    with compiler_output_hidden():
        compiled = lowered.compile(compiler_options(target.platform))
    program = Program.parse(compiled.as_text())
    memory = by_kind(compiled.memory_analysis())
    return figures(
        memory, find_collectives(all_instructions(program)), time.perf_counter() - started
    )


def compile_convoy(target: Target, opened: CompileTarget, options: argparse.Namespace) -> Tree:
    """Compile the training program of Convoy, and return its figures."""

    def run() -> None:
        strategy = convoy.Strategy(
            gradient_accumulation=options.accumulation, precision="mixed_bfloat16"
        )
        shape = options.side, options.side, 3
        with strategy.scope():
            images = keras.Input(shape, dtype="uint8")
            core = resnet(shape, CLASSES, blocks=options.blocks, bottleneck=True, name="resnet")
            model = keras.Model(images, core(keras.layers.Rescaling(1 / 255)(images)))
            model.compile(
                keras.optimizers.SGD(RATE, MOMENTUM, nesterov=True),
                "sparse_categorical_crossentropy",
                steps_per_execution=options.accumulation,
            )
        samples = options.micro_batch * options.accumulation * len(opened.devices)
        x, y = np.zeros((samples, *shape), np.uint8), np.zeros(samples, np.int32)
        model.fit(x, y, batch_size=options.micro_batch)

    with Console() as console:
        (program,) = compile_run(target, opened, run, console).programs
    return figures(program.memory, program.collectives, program.compile_seconds)


def figures(memory: dict[str, int], collectives: list, seconds: float) -> Tree:
    total = sum(memory[kind] for kind in ("argument", "output", "temp", "generated_code"))
    return {
        "memory": memory | {"total": total - memory["alias"]},
        "collectives": [vars(collective) for collective in collectives],
        "seconds": round(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="tpu:v5e:4x4")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--blocks", type=int, nargs="+", default=[3, 4, 6, 3])
    options = parser.parse_args()
    target = parse_target(options.target)
    opened = open_target(target)
    found = {}
    compilers: dict[str, Callable[..., Tree]] = {"jax": compile_plain, "convoy": compile_convoy}
    for name, compile_it in compilers.items():
        found[name] = compile_it(target, opened, options)
        print(json.dumps({name: found[name]}), flush=True)
    sizes = [found[name]["memory"]["total"] for name in ("convoy", "jax")]
    print(f"memory of Convoy over plain JAX: {sizes[0] / sizes[1]:.3f}")


if __name__ == "__main__":
    main()
