"""A run on several hosts as a manifest: a JobSet, or a TrainJob of Kubeflow's Trainer. Pure.

JobSet: https://jobset.sigs.k8s.io, API jobset.x-k8s.io/v1alpha2. Its controller makes the headless service
by which pods find one another, `<jobset>-<job>-0-<index>.<subdomain>`; Kubernetes gives each pod of an
indexed job JOB_COMPLETION_INDEX. TrainJob: API trainer.kubeflow.org/v1alpha1; the runtime torch-distributed
gives each pod PET_NNODES, PET_NODE_RANK and PET_MASTER_ADDR, whatever the program is.
"""

import re
from typing import Any

from gputopo.launch.spec.exports.start import HostsStart
from gputopo.launch.spec.exports.yaml_text import Noted, yaml_text

_MAX_NAME = 40  # a pod's name has the job, indices and a suffix besides, and 63 characters at most
_JOB = "workers"
# Pods start when their node has pulled the image, each at its own time. As torchrun's rendezvous waits.
_JOIN = ("--join-timeout", "600")


def jobset(start: HostsStart) -> str:
    """Return the manifest of a JobSet. Raises UsageError for words that are not UTF-8."""
    name = _name(start)
    container = {
        "name": "gputopo",
        "image": _image(start),
        "command": _words(start.on_all_gpus("--num-hosts", str(start.size), *_patience(start))),
        "env": [
            {"name": "JOBSET_NAME", "value": name},
            {"name": "MASTER_ADDR", "value": f"{name}-{_JOB}-0-0.{name}"},
        ],
        "resources": _resources(start),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [Noted({"name": "shm", "emptyDir": {"medium": "Memory"}}, "for NCCL")],
    }
    job = {
        "completionMode": "Indexed",
        "completions": start.size,
        "parallelism": start.size,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return _notes(start) + yaml_text(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": name},
            "spec": {
                "network": {"enableDNSHostnames": True, "subdomain": name},
                "failurePolicy": {"maxRestarts": 0},
                "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": job}}],
            },
        }
    )


def trainjob(start: HostsStart) -> str:
    """Return the manifest of a TrainJob. Raises UsageError for words that are not UTF-8."""
    return _notes(start) + yaml_text(
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": _name(start)},
            "spec": {
                "runtimeRef": {
                    "apiGroup": "trainer.kubeflow.org",
                    "kind": "ClusterTrainingRuntime",
                    "name": Noted(
                        "torch-distributed", "gives the rank and the host of rank 0: PET_NODE_RANK"
                    ),
                },
                "trainer": {
                    "image": _image(start),
                    "command": _words(start.on_all_gpus(*_patience(start))),
                    "numNodes": start.size,
                    "resourcesPerNode": _resources(start),
                },
            },
        }
    )


def _name(start: HostsStart) -> str:
    """Return a name by RFC 1035's rules for labels."""
    return re.sub(r"[^a-z0-9]+", "-", start.job_name.lower())[:_MAX_NAME].strip("-")


def _image(start: HostsStart) -> Noted:
    what = "gputopo and the program" if start.program else "gputopo and TensorFlow with CUDA"
    return Noted("IMAGE", f"fill in: an image that has {what}")


def _resources(start: HostsStart) -> dict[str, Any]:
    return {"limits": {"nvidia.com/gpu": len(start.gpus)}}


def _patience(start: HostsStart) -> tuple[str, ...]:
    """Return how long the pods wait for one another, unless that was asked for."""
    return () if _JOIN[0] in start.words else _JOIN


def _words(command: list[str]) -> list[str]:
    """Return words in which Kubernetes expands no variable: `$$` is a dollar sign there."""
    return [word.replace("$", "$$") for word in command]


def _notes(start: HostsStart) -> str:
    used = ", ".join(ascii(folder) for folder in start.folders)
    return f"# Mount what the run reads and writes: {used}\n" if used else ""
