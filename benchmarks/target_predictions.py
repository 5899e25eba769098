"""Limits of the speed of compiled training programs on 16 to 4,096 devices, as tables.

    convoy compile --target tpu:v5e:4x4 ... --json > resnet50.json
    python -m benchmarks.target_predictions "ResNet-50:64:resnet50.json" ...

Each argument names a network, the samples of a weight update on each device, and a document of
`convoy compile --json`. Every device keeps its samples, so the global batch grows with the number
of devices. A weight update takes at least as long as its work at the device's highest 16-bit speed,
and then the exchange of its gradients over the links in `convoy.plan.link_speeds`. Work and bytes
of gradients are those of the program before it is compiled, and equal for all kinds of devices;
memory is that of the compiled one. If a network has several documents, the first one gives its
limits. Nothing is measured: no program reaches these limits.
"""

import argparse
import json
from pathlib import Path

from convoy.compile.targets import GPUS, TPUS, Target, parse_target
from convoy.plan.link_speeds import target_machine
from convoy.units import format_number

COUNTS = (16, 64, 256, 1024, 4096)
PLATFORMS = dict.fromkeys(TPUS, "tpu") | dict.fromkeys(GPUS, "gpu")
GPUS_PER_HOST = 8
LATENCY = 30e-6


def train_program(document):
    return max(document["programs"], key=lambda program: program["flops"])


def compiled_row(name, samples, document):
    """Return the cells about a compiled program."""
    target, program = parse_target(document["target"]["name"]), train_program(document)
    return [
        name,
        target.name,
        str(samples),
        f"{program['memory']['total'] / 1e9:.2f} of {target.memory / 1e9:.1f}",
        f"{program['flops'] / 1e12:.3g}",
        f"{gradient_bytes(program) / 1e6:.1f}",
        format_number(program["seconds"]["compile"], 3),
    ]


def gradient_bytes(program):
    return sum(collective["bytes"] for collective in program["collectives"])


def limit_rows(name, samples, document):
    """Return the cells about the limits, a row for each kind of device."""
    program, found = train_program(document), []
    for kind, platform in PLATFORMS.items():
        cells = [name, kind]
        for count in COUNTS:
            hosts = count // GPUS_PER_HOST
            shape = (hosts, GPUS_PER_HOST) if platform == "gpu" else (count,)
            target = Target(f"{platform}:{kind}", platform, kind, shape)
            machine = target_machine(target, LATENCY)
            work = program["flops"] / target.flops
            exchange = machine.exchange_seconds(count, 1, gradient_bytes(program))
            if count == COUNTS[0]:
                cells.append(f"{1e3 * work:.3g}")
            speed = count * samples / (work + exchange)
            cells.append(f"{format_number(speed, 3)} ({exchange / (work + exchange):.0%})")
        found.append(cells)
    return found


def table(head, found):
    lines = [head, ["---"] * len(head), *found]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("documents", nargs="+", metavar="NAME:SAMPLES:FILE")
    given = [text.split(":", 2) for text in parser.parse_args().documents]
    read = [(name, int(count), json.loads(Path(file).read_text())) for name, count, file in given]
    head = ["network", "compiled for", "samples", "GB on a device", "TFLOP", "MB of gradients"]
    print(table([*head, "s to compile"], [compiled_row(*each) for each in read]), end="\n\n")
    head = ["network", "device", "work, ms", *(f"{count:,} devices" for count in COUNTS)]
    first = {each[0]: each for each in reversed(read)}
    print(table(head, [row for name in reversed(first) for row in limit_rows(*first[name])]))


if __name__ == "__main__":
    main()
