"""`convoy train` in the processes of `convoy launch`: one run, and the first process speaks."""

from __future__ import annotations

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
from convoy.train.options import Options
from convoy.train.run_settings import devices_of_a_replica


@contextlib.contextmanager
def as_one_run(options: Options) -> Iterator[tuple[Options, Output]]:
    """Give each process the same options, and a folder to write to.

    The first one's is that of the run. The others write the same files to folders of their own,
    which are removed: what a process has read or written there is the same in all of them.

    Args:
        options: as they were given; the number of replicas is what the run was launched with.
    """
    if distributed.count() == 1:
        yield options, Output()
        return
    options = _same_everywhere(options)
    if distributed.is_first():
        distributed.wait_for_all("folders are there")
        yield options, Output()
        return
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        own = Path(folder) / "run"
        if options.resume and options.output_dir and Path(options.output_dir).is_dir():
            shutil.copytree(options.output_dir, own)
        distributed.wait_for_all("folders are there")
        elsewhere = None if options.checkpoint_output_dir is None else f"{folder}/checkpoints"
        yield (
            replace(options, output_dir=str(own), checkpoint_output_dir=elsewhere),
            Output(nowhere),
        )


def _same_everywhere(options: Options) -> Options:
    """Take the number of replicas from the launch, and a seed from the first process."""
    replicas = len(jax.devices()) // devices_of_a_replica(options)
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
