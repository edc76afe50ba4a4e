"""Builds training steps on CPU devices for `test_turns`: `python -m ... CORES TOWERS`; prints JSON.

Printed for each mode, of every op that adds gradients of several towers, and where each changes its own
variables of every such change: how many towers' time marks it waits for.
"""

import json
import os
import sys
from typing import Any

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])

import msgspec  # noqa: E402

from gputopo.events import Device  # noqa: E402
from gputopo.launch.core import models  # noqa: E402
from gputopo.launch.core.placement.devices import set_up  # noqa: E402
from gputopo.launch.core.trainers import OwnTowers, stepper_of  # noqa: E402
from tests.launch.specs import cpu_spec  # noqa: E402

TOWERS = int(sys.argv[2])
MODES: dict[str, dict[str, Any]] = {
    "parameter_server": {"variable_update": "parameter_server"},
    "ring": {"variable_update": "replicated", "all_reduce": "ring", "ps_device": None},
    "independent": {"variable_update": "independent", "ps_device": None},
}
COUNTED = {"independent": ("ResourceApplyGradientDescent",)}


def awaited(name: str, nodes: dict[str, Any]) -> set[str]:
    """Give what an op of the update waits for without taking a value from it, itself or through others."""
    found: set[str] = set()
    ahead, seen = [name], set()
    while ahead:
        one = ahead.pop()
        if one in seen or not one.startswith("update"):
            continue
        seen.add(one)
        for source in nodes[one].input:
            if source.startswith("^"):
                found.add(source)
            ahead.append(source.lstrip("^").partition(":")[0])
    return found


spec = cpu_spec(
    model="trivial",
    devices=tuple(Device(tower=n, device=f"/CPU:{n}", hop_to_variables="host") for n in range(TOWERS)),
)
set_up(spec)
waits: dict[str, list[int]] = {}
for name, mode in MODES.items():
    own = msgspec.structs.replace(spec, **mode)
    step = stepper_of(models.build(own.model, own), own)
    assert isinstance(step, OwnTowers)
    nodes = {node.name: node for node in step.step.graph_nodes()}
    waits[name] = [
        len(awaited(node.name, nodes))
        for node in nodes.values()
        if node.name.startswith("update") and node.op in COUNTED.get(name, ("AddN", "AddV2"))
    ]
json.dump(waits, sys.stdout)
