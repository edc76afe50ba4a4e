"""Which ops of a graph have no kernel for GPUs in TensorFlow's registry, of their types. No GPU is needed."""

import functools
from collections.abc import Iterable
from typing import Any


def is_gpu_build() -> bool:
    """Whether this TensorFlow has kernels for GPUs at all."""
    return any(kernel.device_type == "GPU" for kernel in _kernels_of("Conv2D"))


def without_gpu_kernel(nodes: Iterable[Any]) -> list[Any]:
    """Return the nodes for which there is none."""
    return [node for node in nodes if not any(_fits(kernel, node) for kernel in _kernels_of(node.op))]


def is_on_host(node: Any) -> bool:
    """Whether the kernel for GPUs of an AddV2 has all its inputs and its output in the host's memory."""
    fitting = [one for one in _kernels_of(node.op) if one.device_type == "GPU" and _fits(one, node)]
    return bool(fitting) and all({"x", "y", "z"} <= set(one.host_memory_arg) for one in fitting)


@functools.cache
def _kernels_of(op: str) -> Any:
    from tensorflow.python.framework import kernels

    return kernels.get_registered_kernels_for_op(op).kernel


def _fits(kernel: Any, node: Any) -> bool:
    if kernel.device_type not in ("GPU", "DEFAULT"):
        return False
    for rule in kernel.constraint:
        allowed, given = set(rule.allowed_values.list.type), node.attr[rule.name]
        if allowed and not set(given.list.type or [given.type]) <= allowed:
            return False
    return True
