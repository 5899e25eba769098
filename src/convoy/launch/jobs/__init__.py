"""Generation of job files for clusters (`convoy launch --write`)."""

from collections.abc import Callable

from convoy.launch.jobs.job import Job
from convoy.launch.jobs.kubernetes import kubernetes_job
from convoy.launch.jobs.slurm import slurm_job
from convoy.launch.jobs.tpu_vm import tpu_vm_job

WRITERS: dict[str, Callable[[Job], str]] = {
    "slurm": slurm_job,
    "kubernetes": kubernetes_job,
    "tpu-vm": tpu_vm_job,
}
