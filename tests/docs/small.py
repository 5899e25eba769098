"""Commands of the pages at a small size: the words of the page, with other sizes and places."""

import re
import shlex
from itertools import pairwise
from typing import NamedTuple

# What a command's own numbers are lowered to.
LIMITS = {
    "--batches-per-step": 2,
    "--epochs": 1,
    "--gradient-accumulation": 4,
    "--image-size": 32,
    "--gradient-accumulation-count": 4,
    "--n-epochs": 1,
    "--n-train": 32,
    "--n-valid": 4,
    "--num-epochs": 1,
    "--num-images": 8,
    "--num-replicas": 2,
    "--repeat": 2,
    "--replicas": 2,
    "--size": 32,
}


class Rule(NamedTuple):
    """What is small or elsewhere for some programs.

    Attributes:
        added: flags, unless the command has them: what the program would do by itself is large.
        before: words in front of the script.
        replaced: words of the command with others in their place, `old=new`.
    """

    added: str = ""
    before: str = ""
    replaced: str = ""


_VOLUMES = (
    "--n-train 32 --n-valid 4 --n-epochs 1 --iterations-per-loop 8 --micro-batch-size 2 "
    "--conv-size 2"
)
# By a part of the command in its folder; the first that fits. DIR is the folder of data sets, GRPC
# the port of the server that a command before has started.
RULES = {
    r"convoy plan": Rule(replaced="resnet50=cifar_resnet8"),
    r"convoy train": Rule("--num-epochs 1"),
    r"convoy serve": Rule("--port 0 --grpc-port 0"),
    r"convoy request": Rule("--num-images 8 --processes 1 --port GRPC"),
    r"cnns(/|: .*)train\.py": Rule(
        "--num-epochs 1 --weight-updates-per-epoch 2 --dataset-path DIR"
    ),
    r"cifar10: .*\.py": Rule("--epochs 1 --batch-size 4 --dataset-path DIR"),
    r"cosmoflow: .*train\.py": Rule(_VOLUMES),
    r"make_fields\.py": Rule("--n-train 32 --n-valid 4"),
    r"ipu_estimator_cnn\.py": Rule(
        "--epochs 0.1 --batch-size 8 --batches-per-step 2 --dataset-path DIR --model-dir kept",
        replaced="/path/to/ckpt=kept",
    ),
    # As the page says, instead of a download.
    r"mnist: .*\.py": Rule(before="test/run.py DIR/mnist.npz"),
    r"benchmarks/loop_overhead": Rule("--steps 1000 --rounds 1"),
    r"benchmarks\.unusual_models": Rule("--steps 2 --rounds 1"),
    r"benchmarks/scaling": Rule("--workloads resnet8 --rounds 1 --updates 1"),
    r"benchmarks\.recording": Rule("--steps 2 --rounds 2 --steps-per-execution 1"),
    r"benchmarks\.checkpoint": Rule("--saves 2 --image 32 --batch 1"),
    r"benchmarks\.input_pipeline": Rule("--peers convoy --images 260 --rounds 1 --seconds 0.1"),
    r"benchmarks/pipeline": Rule("--rounds 1 --updates 1"),
    r"benchmarks/planner": Rule("--networks ResNet-8 --rounds 1"),
    r"peers\.profile": Rule(replaced="resnet50=toy efficientnet=mnist"),
}

# What three dots stand for if no command before says it.
OF_THE_READER = ["--dataset", "cifar10", "--dataset-path", "DIR"]


def make_small(command, folder, places, before):
    """Return the words of a command at a small size.

    Args:
        command: of a page.
        folder: where it runs.
        places: what stands for DIR and the like.
        before: the words of the last command of its kind on the page, as they stand there.
    """
    words = _filled(command.words, folder, before)
    rule = RULES.get(fitting_rule(command), Rule())
    replaced = dict(pair.split("=") for pair in rule.replaced.split())
    words = [replaced.get(word, word) for word in words]
    script = next((place for place, word in enumerate(words) if word.endswith(".py")), 0)
    words[script:script] = rule.before.split()
    words = _lowered(words) + _missing(rule.added.split(), words)
    return [_placed(word, places) for word in words]


def fitting_rule(command):
    """Return which of the rules is for a command, or nothing."""
    place = f"{command.folder.name}: {shlex.join(command.words)}"
    return next((part for part in RULES if re.search(part, place)), None)


def _filled(words, folder, before):
    """Fill in three dots: a part of a path by what is there, a word by the flags of a command."""
    filled = []
    for word in words:
        if word == "...":
            filled += _missing(before[2:] or OF_THE_READER, words)
        elif "..." in word:
            found = folder.glob(word.replace("...", "*"))
            filled.append(str(max(found, key=lambda path: path.stat().st_mtime)))
        else:
            filled.append(word)
    return filled


def _missing(flags, words):
    """Return those flags, with their values, that a command does not have."""
    missing, taken = [], False
    for word in flags:
        if word.startswith("--"):
            taken = word not in words
        if taken:
            missing.append(word)
    return missing


def _lowered(words):
    lowered = list(words)
    for place, (flag, value) in enumerate(pairwise(words), start=1):
        if flag in LIMITS:
            lowered[place] = str(min(LIMITS[flag], int(value)))
    return lowered


def _placed(word, places):
    for name, place in places.items():
        word = re.sub(rf"\b{name}\b", str(place), word)
    return word
