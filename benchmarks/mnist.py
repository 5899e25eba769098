"""Time and accuracy of the five scripts of the MNIST example, and of stock Keras on TensorFlow.

    .venv/bin/python -m benchmarks.peers.environments    (once)
    .venv/bin/python -m benchmarks.mnist mnist.npz

Expected: every script reaches about 0.93 training accuracy after 3 epochs and 0.958 to 0.963 in the
evaluation, and each is faster than the one before it, as far as the cores allow. Six minutes on two
cores.

Each script runs unchanged in its own process, except that the digits come from a file and a
callback waits for its turn. The scripts take turns epoch by epoch; the waiting ones are stopped by
a signal. The first epoch compiles and is not timed.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.peers import environments, machine
from benchmarks.peers.peers import Contender, Peer
from benchmarks.peers.process import RunnerProcess
from benchmarks.peers.report import table

EXAMPLE = environments.ROOT / "examples" / "mnist"
EPOCHS = 3
TIMEOUT = 900.0
BATCH = 64

PEERS = (
    Peer("keras", "stock Keras on TensorFlow", "tensorflow", "mnist_runner", "demo.py"),
    Peer("demo", "`demo.py`", "convoy", "mnist_runner", "demo.py"),
    *(
        Peer(name, f"`{name}.py`", "convoy", "mnist_runner", f"completed_demos/{name}.py")
        for name in (
            "completed_demo_ipu",
            "completed_demo_faster",
            "completed_demo_replicated",
            "completed_demo_pipelining",
        )
    ),
)


@dataclass
class Runs:
    """What came out of one script: of each epoch, and of the evaluation at the end."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    evaluation: tuple[float, float] = (0.0, 0.0)

    @property
    def milliseconds(self) -> list[float]:
        """The time of 64 images in each epoch but the first."""
        return [1e3 * BATCH * e["seconds"] / e["images"] for e in self.epochs[1:]]


def run(data: Path, logs: Path) -> dict[str, Runs]:
    """Have all scripts train and evaluate, in turns."""
    logs.mkdir(parents=True, exist_ok=True)
    processes = [
        RunnerProcess(Contender(peer, "float32"), logs / f"mnist-{peer.name}.log") for peer in PEERS
    ]
    found = {peer.name: Runs() for peer in PEERS}
    try:
        for process in processes:
            _ask(process, f"prepare {data.resolve()}")
        for epoch in range(EPOCHS):
            first = epoch % len(processes)
            for process in processes[first:] + processes[:first]:
                answer = _ask(process, "epoch")
                found[process.contender.peer.name].epochs.append(answer)
                print(
                    f"  epoch {epoch + 1}  {process.contender.peer.title:32} {answer}", flush=True
                )
        for process in processes:
            found[process.contender.peer.name].evaluation = tuple(_ask(process, "evaluate"))
    finally:
        for process in processes:
            process.end()
    return found


def _ask(process: RunnerProcess, line: str) -> Any:
    word, _, rest = process.request(line, TIMEOUT).strip().partition(" ")
    if word != "done":
        raise SystemExit(f"{process.contender.peer.title} could not {line.split()[0]}: {rest}")
    return json.loads(rest)


def page(runs: list[dict[str, Runs]]) -> str:
    """Return the page as Markdown; times are the fastest, accuracies those of every run."""
    times = {p.name: [ms for r in runs for ms in r[p.name].milliseconds] for p in PEERS}
    stock = min(times[PEERS[0].name])
    rows = []
    for peer in PEERS:
        own = times[peer.name]
        last = [r[peer.name].epochs[-1] for r in runs]
        scores = [r[peer.name].evaluation for r in runs]
        rows.append(
            [
                peer.title,
                _several([e["steps"] for e in last[:1]], "d"),
                f"{min(own):.2f} [{max(own):.2f}]",
                f"{stock / min(own):.2f}",
                _several([e["accuracy"] for e in last], ".4f"),
                _several([e["loss"] for e in last], ".4f"),
                _several([accuracy for _, accuracy in scores], ".4f"),
                _several([loss for loss, _ in scores], ".4f"),
            ]
        )
    head = [
        "",
        "steps of an epoch",
        "ms for 64 images",
        "speedup over stock",
        "training accuracy",
        "loss",
        "evaluation accuracy",
        "loss",
    ]
    parts = [
        f"# The MNIST example, {date.today().isoformat()}",
        f"Commit {machine.commit()}. Each script of "
        f"[examples/mnist](../../examples/mnist/README.md) "
        f"in {len(runs)} run{'s' if len(runs) > 1 else ''}, {EPOCHS} epochs on MNIST, an epoch of "
        "each in turn. Made by `python -m benchmarks.mnist`.",
        table(["", ""], machine.describe().items()),
        "Times are of all epochs but the first, which compiles: the fastest [the slowest], as what "
        "else runs on the machine only adds to them. Accuracies are those of each run, of the last "
        "epoch as the progress bar shows it and of the test images.",
        table(head, rows),
    ]
    return "\n\n".join(parts) + "\n"


def _several(values: list[Any], form: str) -> str:
    return ", ".join(f"{value:{form}}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="mnist.npz, as keras.datasets keeps it")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--output", type=Path, help="a page to write")
    parser.add_argument("--raw", type=Path, help="a file to which runs are added, and read from")
    options = parser.parse_args()
    runs: list[dict[str, Runs]] = []
    if options.raw is not None and options.raw.exists():
        earlier = json.loads(options.raw.read_text())
        runs = [{name: Runs(**entry) for name, entry in one.items()} for one in earlier]
    for _ in range(options.runs):
        runs.append(run(options.data, environments.FOLDER / "logs"))
        if options.raw is not None:
            plain = [{name: vars(entry) for name, entry in one.items()} for one in runs]
            options.raw.write_text(json.dumps(plain))
    text = page(runs)
    print(text)
    if options.output is not None:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
