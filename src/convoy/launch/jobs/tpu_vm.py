"""Jobs for TPU virtual machines: the commands of Google's `gcloud` that create and use them."""

import shlex
from math import prod
from pathlib import PurePath

from convoy.checkpoint.preemption import EXIT_STATUS
from convoy.launch.jobs.job import Job
from convoy.launch.topology import LaunchError

# Types of `gcloud compute tpus tpu-vm create --type`, and the software of the machines, by
# Google's pages about the generations.
TYPES = {"v5e": "v5litepod", "v5p": "v5p", "v6e": "v6e"}
SOFTWARE = {"v5e": "v2-alpha-tpuv5-lite", "v5p": "v2-alpha-tpuv5", "v6e": "v2-alpha-tpuv6e"}
TEMPLATE = """\
#!/bin/bash
# Job for {chips} TPU chips on {hosts} virtual machines, written by `convoy launch --write tpu-vm`.
# Run it where gcloud is installed and signed in: ZONE=us-west4-a IMAGE=... bash {name}.sh
# Fill in, here or as variables:
#   ZONE     zone with TPUs {kind}
#   IMAGE    image with Convoy and jax[tpu], which the Dockerfile of Convoy builds
#   NAME     name of the TPU (default: {name})
#   OPTIONS  further options of `gcloud compute tpus tpu-vm create`, such as --spot
# Only the first machine writes checkpoints. When machines are preempted, their disks are lost: let
# the script write checkpoints to a folder below ~/run where a bucket is mounted.
set -euo pipefail

zone=${{ZONE:?"set the zone, such as ZONE=us-west4-a"}}
image=${{IMAGE:?"set the image, such as IMAGE=us-docker.pkg.dev/project/repository/convoy:tpu"}}
name=${{NAME:-{name}}}
read -ra options <<< "${{OPTIONS:-}}"

tpu() {{
  gcloud compute tpus tpu-vm "$@" --zone="$zone"
}}

state() {{
  tpu describe "$name" --format='value(state)' 2> /dev/null || true
}}

prepare() {{
  if [ "$(state)" != READY ]; then
    if [ -n "$(state)" ]; then
      tpu delete "$name" --quiet
    fi
    tpu create "$name" --type={type} --topology={topology} --version={software} "${{options[@]}}"
  fi
  tpu ssh "$name" --worker=all --command="mkdir -p run/{folder} && chmod -R a+rwX run"
  # Copy also what the script imports or reads.
  tpu scp {script} "$name:run/{folder}" --worker=all
  tpu ssh "$name" --worker=all --command="sudo docker pull '$image'"
}}

# Every machine starts one process. The processes find each other by the machines' metadata.
train() {{
  tpu ssh "$name" --worker=all --command="sudo docker run --rm --init --privileged \\
    --network host --volume ~/run:/workspace --workdir /workspace '$image' \\
    {command}"
}}

restarts={restarts}
while true; do
  prepare
  status=0
  train || status=$?
  if [ "$status" -eq 0 ]; then
    break
  fi
  # Preempted: the processes have written a checkpoint, or the machines are gone.
  if [ "$status" -ne {left} ] && [ "$(state)" = READY ]; then
    if [ "$restarts" -eq 0 ]; then
      echo "exit status $status; the machines are still there. Delete them with:" >&2
      echo "  gcloud compute tpus tpu-vm delete $name --zone=$zone" >&2
      exit "$status"
    fi
    restarts=$((restarts - 1))
  fi
  echo "exit status $status: starting again; $restarts restarts are left." >&2
done
tpu scp "$name:run/*" . --recurse --worker=0
tpu delete "$name" --quiet
"""


def tpu_vm_job(job: Job) -> str:
    """Return the commands of a job.

    Raises:
        LaunchError: if its devices are not TPUs, or if an option does not apply to TPUs.
    """
    devices = job.accelerators
    if devices is None or devices.platform != "tpu":
        raise LaunchError("--write tpu-vm needs TPUs. Pass for example --target tpu:v5e:4x4.")
    if job.host_names or job.topology.numa_aware:
        given = "--host" if job.host_names else "--numa-aware"
        raise LaunchError(f"{given} has no meaning for TPU virtual machines. Leave it out.")
    if job.topology.instances != devices.hosts:
        raise LaunchError(
            f"--num-instances {job.topology.instances}: TPU virtual machines run one process each, "
            f"and the target has {devices.hosts}. Leave it out."
        )
    script = PurePath(job.script)
    if script.is_absolute() or ".." in script.parts or script.suffix != ".py":
        raise LaunchError(
            f"{script}: --write tpu-vm copies a Python script by its relative path. Change to a "
            "folder above it, and pass that path."
        )
    # Inside double quotes, where a shell expands some characters.
    command = shlex.join(job.command("tpu-vm")[1:])
    for character in '\\"$`':
        command = command.replace(character, f"\\{character}")
    return TEMPLATE.format(
        chips=prod(devices.shape),
        hosts=devices.hosts,
        name=job.name,
        kind=devices.kind,
        type=TYPES[devices.kind],
        topology="x".join(map(str, devices.shape)),
        software=SOFTWARE[devices.kind],
        script=shlex.quote(str(script)),
        folder="" if script.parent == PurePath(".") else f"{shlex.quote(str(script.parent))}/",
        command=command,
        restarts=job.max_restarts,
        left=EXIT_STATUS,
    )
