"""`convoy train` in the processes of `convoy launch`: one run, with the output of the first."""

import contextlib
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
from convoy import distributed
from convoy.progress_bar import Output
from convoy.train.flags import Options
from convoy.train.run_settings import stages_and_devices


@contextlib.contextmanager
def as_one_run(options: Options) -> Iterator[tuple[Options, Output]]:
    """Yield the same options and an output in each process.

    The first process writes to the folder of the run. The others write the same files to temporary
    folders, so that all processes read and write the same.

    Args:
        options: options of the command line; the launch determines the number of replicas.
    """
    if distributed.count() == 1:
        yield options, Output()
        return
    options = _common_options(options)
    if distributed.is_first():
        distributed.wait_for_all("folders are there")
        yield options, Output()
        return
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as null:
        own = Path(folder) / "run"
        if options.resume and options.output_dir and Path(options.output_dir).is_dir():
            shutil.copytree(options.output_dir, own)
        distributed.wait_for_all("folders are there")
        checkpoints = None if options.checkpoint_output_dir is None else f"{folder}/checkpoints"
        yield (
            replace(options, output_dir=str(own), checkpoint_output_dir=checkpoints),
            Output(null),
        )


def _common_options(options: Options) -> Options:
    """Take the number of replicas from the launch, and the seed from the first process."""
    _, devices_per_replica = stages_and_devices(options)
    replicas = len(jax.devices()) // devices_per_replica
    if replicas != options.num_replicas and distributed.is_first():
        print(
            f"convoy train: --num-replicas {options.num_replicas} is overridden by the "
            f"{replicas} replicas that were launched.",
            file=sys.stderr,
        )
    seed = options.seed
    if seed is None:
        seed = distributed.from_first(random.SystemRandom().randrange(2**31))
    return replace(options, num_replicas=replicas, seed=seed)
