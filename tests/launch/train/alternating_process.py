"""Builds training steps on CPU devices for `test_alternating`: `python -m ... CORES TOWERS`; prints JSON.

Printed for each mode, in `adds` of every op that adds gradients of several towers, and in `changes` of every
op that changes a variable: how many towers' time marks it waits for without taking a value from them.
"""

import json
import os
import sys
from typing import Any

CORES = set(range(int(sys.argv[1])))
os.sched_getaffinity = lambda pid: CORES  # nothing is run, so there may be more than this machine has

import msgspec  # noqa: E402

from gputopo.launch.models import models  # noqa: E402
from gputopo.launch.spec.run_spec import Exchange  # noqa: E402
from gputopo.launch.train.placement.devices import set_up  # noqa: E402
from gputopo.launch.train.step import TrainingStep  # noqa: E402
from gputopo.launch.train.training import stepper_of  # noqa: E402
from gputopo.values.run.events import Device  # noqa: E402
from tests.launch.specs import cpu_spec  # noqa: E402

TOWERS = int(sys.argv[2])
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


spec = cpu_spec(
    model="trivial",
    devices=tuple(Device(tower=n, device=f"/CPU:{n}", hop_to_variables="host") for n in range(TOWERS)),
)
set_up(spec)
found: dict[str, dict[str, list[Any]]] = {}
for name, mode in MODES.items():
    own = msgspec.structs.replace(spec, **mode)
    model = models.build(own.model, own)
    step = stepper_of(model, own)
    assert isinstance(step, TrainingStep)
    nodes = {node.name: node for node in step.graph_nodes()}
    found[name] = {kind: [] for kind in KINDS}
    for node in nodes.values():
        for kind, ops in KINDS.items():
            if node.name.startswith("update") and node.op in ops:
                sources = awaited(node.name, nodes)
                found[name][kind].append(sum(source.startswith("marks/") for source in sources))
json.dump(found, sys.stdout)
