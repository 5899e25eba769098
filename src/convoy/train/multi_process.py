"""`convoy train` in the processes of `convoy launch`: one run, with the output of the first."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
from convoy import distributed
from convoy.progress_bar import Output
from convoy.train.flags import Options
from convoy.train.messages import notify
from convoy.train.run_folder import default_folder
from convoy.train.run_settings import draw_seed, stages_and_devices


@contextlib.contextmanager
def as_one_run(options: Options) -> Iterator[tuple[Options, Output]]:
    """Yield the same options and an output in each process.

    The first process writes to the run's folder. The other processes write the same files to
    temporary folders, so that all processes run the same code. With `--ckpt-all-instances`, all
    processes write their checkpoints to the run's folder.

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
        checkpoints = options.checkpoint_output_dir
        if options.ckpt_all_instances:
            checkpoints = checkpoints or f"{options.output_dir}/checkpoints"
        elif checkpoints is not None:
            checkpoints = f"{folder}/checkpoints"
        yield (
            replace(options, output_dir=str(own), checkpoint_output_dir=checkpoints),
            Output(null),
        )


def _common_options(options: Options) -> Options:
    """Take the number of replicas from the launch, and the seed from the first process."""
    _, devices_per_replica = stages_and_devices(options)
    replicas = len(jax.devices()) // devices_per_replica
    if replicas != options.num_replicas and distributed.is_first():
        notify(
            f"--num-replicas {options.num_replicas} is overridden by the {replicas} replicas that "
            "were launched."
        )
    seed = options.seed
    if seed is None:
        seed = distributed.from_first(draw_seed())
    output_dir = options.output_dir
    if options.ckpt_all_instances and output_dir is None:
        output_dir = distributed.from_first(str(default_folder(options.model, options.dataset)))
    return replace(options, num_replicas=replicas, seed=seed, output_dir=output_dir)
