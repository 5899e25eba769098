"""Jobs for Slurm: batch files."""

import shlex
import sys

from convoy.checkpoint.preemption import EXIT_STATUS
from convoy.launch.jobs.job import GRACE_SECONDS, WAIT_SECONDS, Job
from convoy.launch.topology import LaunchError

# Tasks do not inherit the job's setting for cores.
CORES = '${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"}'
TEMPLATE = """\
#!/bin/bash
# Job for Slurm, written by `convoy launch --write slurm`. Submit it with: sbatch {file}
# Fill in, or remove where the cluster has a default:
#   <account>, <partition>  where the job runs
#   <cores>                 CPU cores of each process
#   <time>                  longest run until the job is queued again, such as 12:00:00
# The script and its checkpoints are in the folder from which the job is submitted, on all nodes.
#
{directives}

# The environment with Convoy, on all nodes.
environment={environment}
export PATH="$environment/bin:$PATH"

# {grace} seconds before the end of the job's time, or when it is preempted, the processes receive
# SIGTERM, write a checkpoint and exit with {left}. The job is then queued again, and resumes. If
# this file receives the signal, too, the job was cancelled, or Slurm itself queues it again.
stopped=no
trap 'stopped=yes' TERM
restarts={restarts}
while true; do
  srun {srun} \\
    {command}
  status=$?
  if [ "$status" -eq 0 ] || [ "$stopped" = yes ]; then
    exit "$status"
  fi
  if [ "$status" -eq {left} ]; then
    scontrol requeue "$SLURM_JOB_ID"
    exit {left}
  fi
  if [ "$restarts" -eq 0 ]; then
    exit "$status"
  fi
  restarts=$((restarts - 1))
  echo "exit status $status: restarting all processes; $restarts restarts are left." >&2
done
"""


def slurm_job(job: Job) -> str:
    """Return the batch file of a job.

    Raises:
        LaunchError: if its devices are TPUs.
    """
    devices = job.accelerators
    if devices is not None and devices.platform == "tpu":
        raise LaunchError(
            "--write slurm is for CPUs and GPUs. Pass --write tpu-vm or --write kubernetes for "
            "TPUs."
        )
    options = {
        "job-name": job.name,
        "account": "<account>",
        "partition": "<partition>",
        "nodes": str(job.hosts),
        "ntasks-per-node": str(job.topology.instances // job.hosts),
        "cpus-per-task": "<cores>",
        "time": "<time>",
        "signal": f"TERM@{GRACE_SECONDS}",
        "output": "%x-%j.out",
    }
    if job.host_names:
        options["nodelist"] = ",".join(job.host_names)
    if devices is not None:
        options["gpus-per-task"] = str(devices.devices // job.topology.instances)
    # After a requeue, the output is appended to the same file.
    directives = [f"#SBATCH --{name}={value}" for name, value in options.items()]
    directives += ["#SBATCH --requeue", "#SBATCH --open-mode=append"]
    # The other tasks are not killed at the first exit, so that a preempted run keeps the exit
    # status of its processes, which exit together.
    srun = [f"--wait={WAIT_SECONDS}", "--kill-on-bad-exit=0", "--label"]
    if job.topology.numa_aware:
        srun.append("--cpu-bind=ldoms")
    return TEMPLATE.format(
        file=f"{job.name}.sbatch",
        directives="\n".join(directives),
        environment=shlex.quote(sys.prefix),
        grace=GRACE_SECONDS,
        left=EXIT_STATUS,
        restarts=job.max_restarts,
        srun=f"{CORES} {shlex.join(srun)}",
        command=shlex.join(job.command("slurm")),
    )
