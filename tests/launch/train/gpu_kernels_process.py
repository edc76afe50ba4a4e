"""Builds training steps and looks their ops up for GPUs: `python -m tests.launch.train.gpu_kernels_process`.

Towers on CPU 1 and 2 stand for GPUs; CPU 0 is the host. It prints JSON: by part what is in `_Found`.
"""

import itertools
import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import tensorflow as tf

from gputopo.launch.models import build_model
from gputopo.launch.train import set_up_devices, stepper_of
from gputopo.launch.train.lifecycle import ForwardStep
from gputopo.values.run.events import Device
from gputopo.values.run.spec import Data, Exchange, Optimization, Precision, RunSpec
from tests.launch.train.gpu_kernels import is_gpu_build, is_on_host, without_gpu_kernel
from tests.launch.train.inputs import folders
from tests.launch.train.process import tiny

USER = "tests.launch.train.user_models:"
ONE = (Device(tower=0, device="/CPU:1"),)  # where nothing is exchanged
_PLACED = ("MatMul", "Conv2D", "AddN", "ConcatV2", "Split", "Mul")  # by whoever builds a step


@dataclass
class _Found:
    """Nodes on towers' devices, those without a kernel for GPUs, and computing ones on no device.

    `short`: convolutions of 16 bits. `branches`: updates within the branches of a step that may be skipped.
    """

    nodes: int = 0
    without: list[list[str]] = field(default_factory=list)
    nowhere: list[list[str]] = field(default_factory=list)
    short: int = 0
    branches: int = 0

    def look(self, label: str, nodes: Iterable[Any]) -> None:
        given = list(nodes)
        placed = [node for node in given if node.device and not node.device.endswith("CPU:0")]
        self.nodes += len(placed)
        self.without += [[label, node.op, node.name] for node in without_gpu_kernel(placed)]
        self.nowhere += [
            [label, node.op, node.name] for node in given if not node.device and node.op in _PLACED
        ]
        half = (tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum)
        self.short += sum(node.op == "Conv2D" and node.attr["T"].type in half for node in placed)


def spec(update: str = "parameter_server", **fields: Any) -> RunSpec:
    on_one = update == "parameter_server" and not fields.get("exchange", Exchange()).ps_spread
    given: dict[str, Any] = {
        "model": "tiny",
        "backend": "cpu",
        "variable_update": update,
        "devices": tuple(Device(tower=tower, device=f"/CPU:{tower + 1}") for tower in range(2)),
        "ps_device": "/CPU:1" if on_one else None,
        "batch_size": 2,
    }
    return RunSpec(**{**given, **fields})


def core(folder: Path) -> _Found:
    """Placements on two towers, layouts, sources, a forward pass; and variables. Others: `numerics`."""
    specs = [
        spec(data_format="NCHW", data=Data(folder=str(folders.coloured(folder)))),
        spec(exchange=Exchange(staged=True, ps_spread=True), data=Data(source="cpu")),
    ]
    found = _Found()
    for one in specs:
        found.look(f"{one.variable_update} {one.data_format}", stepper_of(tiny(), one).graph_nodes())
    passes = ForwardStep(tiny(), spec(data_format="NCHW", task="forward", devices=ONE))
    found.look("forward", passes.graph_nodes())
    for op in ("VarHandleOp", "ReadVariableOp", "AssignVariableOp"):
        for dtype in (tf.float32, tf.int64):
            node = tf.compat.v1.NodeDef(op=op)
            node.attr["dtype"].type = dtype.as_datatype_enum
            found.without += [[dtype.name, op] for _ in without_gpu_kernel([node])]
    return found


def marks() -> dict[str, Any]:
    """What the mark of a tower's weights waits for on GPUs, and what its first layer waits for."""
    step = stepper_of(tiny(), spec(backend="gpu"))
    ops = step.graph.graph.get_operations()
    (last,) = (op for op in ops if op.name == "marks/Neg")
    asked = last.inputs[0].op
    first = next(op for op in ops if op.type == "Conv2D")
    return {
        "device": asked.device,
        "on host": is_on_host(asked.node_def),
        "waits for others": len(asked.control_inputs) - len(step.placement.places[0]),
        "gates": len(first.control_inputs),
        "after the start": all(start <= min(rest) for start, *rest in step(0).marks.tolist()),
    }


def numerics() -> _Found:
    """Short types, loss scales and optimizers, also inside the branches of a step that may be skipped."""
    found = _Found()
    packed = Exchange(relaxed=True, repacking=2, small_bytes=4096, transfer="fp16")
    cases: tuple[tuple[str, str, RunSpec], ...] = (
        ("fp16", "adam", spec(devices=ONE)),
        ("bf16", "rmsprop", spec("replicated", data_format="NCHW", exchange=packed, all_reduce="ring#2")),
    )
    for compute, optimizer, placed in cases:
        one = msgspec.structs.replace(
            placed,
            precision=Precision(compute=compute, auto_loss_scale=True),  # type: ignore[arg-type]
            optimization=Optimization(
                optimizer=optimizer,  # type: ignore[arg-type]
                weight_decay=0.1,
                gradient_clip=1.0,
                gradient_clip_norm=1.0,
            ),
        )
        graph = stepper_of(tiny(), one).graph.graph.as_graph_def()
        inner = [node for function in graph.library.function for node in function.node_def]
        found.look(f"{compute} {optimizer}", itertools.chain(graph.node, inner))
        found.branches += sum("ResourceApply" in node.op for node in inner)
    return found


def trainers() -> _Found:
    """What Keras models, methods and strategies place."""
    found = _Found()

    def look(label: str, one: RunSpec) -> None:
        step: Any = stepper_of(build_model(one.model, one), one)
        found.look(label, step.graph_nodes())

    look("mobile", spec(model=USER + "mobile", data_format="NCHW"))
    methods: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("kuza55", USER + "normed", {"optimizer": "sgd", "gradient_clip": 1.0}),
        ("avolkov1", USER + "dropping", {"optimizer": "momentum", "nesterov": True, "weight_decay": 0.1}),
    )
    for method, model, options in methods:
        look(f"{model} {method}", spec(model=model, method=method, optimization=Optimization(**options)))
    short = Precision(compute="fp16", loss_scale=128.0, auto_loss_scale=True)
    look("short", spec(model=USER + "stateful", method="fchollet", precision=short))
    look("mirrored", spec(model=USER + "normed", strategy="mirrored:hierarchical"))
    return found


if __name__ == "__main__":
    set_up_devices(spec())
    parts = {part.__name__: asdict(part()) for part in (numerics, trainers)}
    with tempfile.TemporaryDirectory() as folder:
        parts["core"] = asdict(core(Path(folder)))
    json.dump({"gpu_build": is_gpu_build(), "marks": marks(), **parts}, sys.stdout)
