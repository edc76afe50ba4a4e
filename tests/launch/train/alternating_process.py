"""Builds training steps on CPU devices for `test_alternating`; prints JSON.

Printed for each of BUILT, by cores and towers as `1x3`, and each mode, in `adds` of every op that adds
gradients of several towers, and in `changes` of every op that changes a variable: how many towers' time marks
it waits for without taking a value from them.
"""

import json
import os
import sys
from typing import Any

import msgspec

from gputopo.launch.models import build_model
from gputopo.launch.train import set_up_devices, stepper_of
from gputopo.values.run.events import Device
from gputopo.values.run.spec import Exchange
from tests.launch.specs import cpu_spec

BUILT = {
    (1, 3): ("parameter_server", "relaxed"),
    (2, 2): ("ring",),
    (2, 3): ("independent",),
}
MODES: dict[str, dict[str, Any]] = {
    "parameter_server": {"variable_update": "parameter_server"},
    "ring": {"variable_update": "replicated", "all_reduce": "ring", "ps_device": None},
    "relaxed": {"variable_update": "replicated", "exchange": Exchange(relaxed=True), "ps_device": None},
    "independent": {"variable_update": "independent", "ps_device": None},
}
KINDS = {"adds": ("AddN", "AddV2"), "changes": ("ResourceApplyGradientDescent",)}


def awaited(name: str, nodes: dict[str, Any]) -> set[str]:
    """Return what an op of the update waits for without taking a value from it, itself or through others."""
    found: set[str] = set()
    ahead, seen = [name], set()
    while ahead:
        one = ahead.pop()
        if one in seen or not one.startswith("update"):
            continue
        seen.add(one)
        for source in nodes[one].input:
            if source.startswith("^"):
                found.add(source[1:])
            ahead.append(source.lstrip("^").partition(":")[0])
    return found


def built(cores: int, towers: int, mode: str) -> dict[str, list[int]]:
    """Build one step as on so many cores. No step is taken, so there may be more than this machine has."""
    os.sched_getaffinity = lambda pid: set(range(cores))
    spec = msgspec.structs.replace(SPEC, devices=SPEC.devices[:towers], **MODES[mode])
    step = stepper_of(build_model(spec.model, spec), spec)
    nodes = {node.name: node for node in step.graph_nodes()}
    return {
        kind: [
            sum(source.startswith("marks/") for source in awaited(node.name, nodes))
            for node in nodes.values()
            if node.name.startswith("update") and node.op in ops
        ]
        for kind, ops in KINDS.items()
    }


SPEC = cpu_spec(
    model="trivial-cifar10",
    devices=tuple(Device(tower=n, device=f"/CPU:{n}", hop_to_variables="host") for n in range(3)),
)
set_up_devices(SPEC)
found = {
    f"{cores}x{towers}": {mode: built(cores, towers, mode) for mode in modes}
    for (cores, towers), modes in BUILT.items()
}
json.dump(found, sys.stdout)
