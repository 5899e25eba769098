"""Jobs for Kubernetes: JobSet manifests."""

import shlex
from typing import Any

import yaml
from convoy.checkpoint.preemption import EXIT_STATUS
from convoy.launch.jobs.job import GRACE_SECONDS, Accelerators, Job, as_comment
from convoy.launch.topology import PORT, LaunchError

CONTAINER = "convoy"
FOLDER = "/workspace"
# Names of TPUs in the labels of nodes, by Google's page about TPUs in GKE.
TPU_NODES = {"v5e": "tpu-v5-lite-podslice", "v5p": "tpu-v5p-slice", "v6e": "tpu-v6e-slice"}
HEADER = """\
Job for Kubernetes, written by `convoy launch --write kubernetes`. It needs the JobSet controller
(https://jobset.sigs.k8s.io). Submit it with: kubectl apply -f {name}.yaml
Fill in:
  <image>            image with Convoy and JAX for the devices, which Convoy's Dockerfile builds
  <claim>            persistent volume claim with the script and its checkpoints, at {folder}
  <cores>, <memory>  requests of each pod, such as 8 and 32Gi
Each pod runs this command:
  {command}
The pods find each other by their names: JobSet makes the headless service {name}. They connect to
port {port} of the first pod, and to ports that the system chooses; a network policy must allow
both. When a pod is evicted, its process receives SIGTERM, all processes write one checkpoint and
exit with {left}, and JobSet starts them again without counting a restart."""


def kubernetes_job(job: Job) -> str:
    """Return the manifest of a job.

    Raises:
        LaunchError: if the job names hosts or NUMA nodes, which the scheduler chooses.
    """
    if job.host_names or job.topology.numa_aware:
        given = "--host" if job.host_names else "--numa-aware"
        raise LaunchError(
            f"{given} has no meaning in Kubernetes, which chooses nodes and cores. Leave it out."
        )
    port = job.topology.port or PORT
    text = HEADER.format(
        name=job.name,
        folder=FOLDER,
        command=shlex.join(job.command("kubernetes")),
        port=port,
        left=EXIT_STATUS,
    )
    return f"{as_comment(text)}\n{yaml.safe_dump(_manifest(job, port), sort_keys=False)}"


def _manifest(job: Job, port: int) -> dict[str, Any]:
    worker = {"name": "worker", "replicas": 1, "template": {"spec": _job_spec(job, port)}}
    preempted = {
        "name": "preempted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name},
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": job.name,
                "publishNotReadyAddresses": True,
            },
            "failurePolicy": {"maxRestarts": job.max_restarts, "rules": [preempted]},
            "replicatedJobs": [worker],
        },
    }


def _job_spec(job: Job, port: int) -> dict[str, Any]:
    """Return the indexed job, which fails if any pod fails, because its processes run together."""
    left = {"containerName": CONTAINER, "operator": "In", "values": [EXIT_STATUS]}
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    return {
        "completionMode": "Indexed",
        "parallelism": job.topology.instances,
        "completions": job.topology.instances,
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": left},
                {"action": "FailJob", "onPodConditions": [disrupted]},
            ]
        },
        "template": {"spec": _pod_spec(job, port)},
    }


def _pod_spec(job: Job, port: int) -> dict[str, Any]:
    container = {
        "name": CONTAINER,
        "image": "<image>",
        "workingDir": FOLDER,
        "command": job.command("kubernetes"),
        "ports": [{"name": "coordinator", "containerPort": port, "protocol": "TCP"}],
        "resources": _resources(job),
        "volumeMounts": [
            {"name": "workspace", "mountPath": FOLDER},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        # Otherwise the process would have PID 1 in the container, which ignores signals by default.
        "shareProcessNamespace": True,
        "containers": [container],
        "volumes": [
            {"name": "workspace", "persistentVolumeClaim": {"claimName": "<claim>"}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if job.accelerators is not None and job.accelerators.platform == "tpu":
        spec["nodeSelector"] = _tpu_nodes(job.accelerators)
    return spec


def _resources(job: Job) -> dict[str, dict[str, str]]:
    found = {"requests": {"cpu": "<cores>", "memory": "<memory>"}}
    if (devices := job.accelerators) is not None:
        name = "google.com/tpu" if devices.platform == "tpu" else "nvidia.com/gpu"
        count = str(devices.devices // job.topology.instances)
        found["requests"][name] = count
        found["limits"] = {name: count}
    return found


def _tpu_nodes(devices: Accelerators) -> dict[str, str]:
    return {
        "cloud.google.com/gke-tpu-accelerator": TPU_NODES[devices.kind],
        "cloud.google.com/gke-tpu-topology": "x".join(map(str, devices.shape)),
    }
