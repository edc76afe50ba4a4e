"""Checks the real devices of variables and ops, read from the rewritten graphs that TensorFlow ran.

Importing this module does not load TensorFlow.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from gputopo.launch.device_names import short_name
from gputopo.values.errors import HardwareError
from gputopo.values.run.spec import RunSpec

T = TypeVar("T")
_TOWER = re.compile(r"(?:^|/)tower_(\d+)/")
# Ops that the runtime adds at the border between devices, or that compute nothing, may be on either side.
_BORDER_OPS = {"_Send", "_Recv", "_HostSend", "_HostRecv", "_Arg", "_Retval", "Const", "NoOp", "Identity"}
# Ops that pass operands into and out of a condition or a loop run on the operands' device.
_CONTROL_FLOW_OPS = {"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond"}
# Ops that are not on the tower's device on purpose: weights are read on their own, the clock on the host.
_HOST_OPS = {"Timestamp", "ReadVariableOp"}


def run_and_collect(run: Callable[[], T]) -> tuple[T, Counter[tuple[int, str]] | None]:
    """Run once, after all assignments to variables (`devices.settle`), and count the ops of each tower.

    The counts are by device: {(tower, device): ops}, or None if this TensorFlow does not return its graphs.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context  # no public name for the executed graphs

    from gputopo.launch.train.placement.devices import settle

    settle()
    current = context.context()
    if not hasattr(current, "enable_graph_collection"):
        return run(), None
    current.enable_graph_collection()
    try:
        with tf.device(None):  # in a client: graphs that run on a server are not returned
            outcome = run()
        metadata = current.export_run_metadata()
    finally:
        current.disable_graph_collection()
    graphs = (graph for of_function in metadata.function_graphs for graph in of_function.partition_graphs)
    return outcome, count_tower_ops(node for graph in graphs for node in graph.node)


def count_tower_ops(nodes: Iterable[Any]) -> Counter[tuple[int, str]]:
    """Count each tower's computing ops by device (`/GPU:1`), from graph nodes (name, op, device)."""
    counts: Counter[tuple[int, str]] = Counter()
    for node in nodes:
        tower = _TOWER.search(node.name)
        if tower and node.op not in _BORDER_OPS | _CONTROL_FLOW_OPS | _HOST_OPS:
            counts[int(tower.group(1)), short_name(node.device)] += 1
    return counts


def check_ops(counts: Counter[tuple[int, str]], spec: RunSpec) -> dict[str, int]:
    """Return the number of ops on each tower's device. Raises HardwareError if an op is on another device."""
    wanted = {device.tower: device.device for device in spec.own_devices}
    for (tower, device), number in sorted(counts.items()):
        if device != wanted[tower]:
            raise HardwareError(
                f"{number} ops of device {tower} were placed on {device}, not on {wanted[tower]}",
                "this TensorFlow cannot run the model there; report it with the run's worker.log",
            )
    placed = Counter[str]()
    for (_, device), number in counts.items():
        placed[device] += number
    missing = set(wanted.values()) - set(placed)
    if missing:
        raise HardwareError(
            f"no op was placed on {', '.join(sorted(missing))}", "report this with the run's worker.log"
        )
    return dict(placed)


def check_variables(sets: Iterable[tuple[Sequence[Any], Sequence[str]]]) -> dict[str, int]:
    """Return the bytes of variables on each device. Raises HardwareError if one is on the wrong device.

    `sets`: lists of variables, each with the expected device of every variable.
    """
    placed = Counter[str]()
    for variables, devices in sets:
        for variable, device in zip(variables, devices, strict=True):
            placed_on = short_name(variable.device)
            if placed_on != device:
                raise HardwareError(
                    f"variable {variable.name} is on {placed_on}, not on {device}",
                    "run 'gputopo inspect', then report it with the run's worker.log",
                )
            placed[device] += variable.shape.num_elements() * variable.dtype.size
    return dict(placed)
