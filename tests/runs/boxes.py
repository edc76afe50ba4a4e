"""Runs of a box whose links and variables differ from what is assumed, as their results."""

from typing import Any

import msgspec

from gputopo.prediction import (
    DEFAULT_PROGRAM,
    ModelCosts,
    Placement,
    ProgramConstants,
    StepPredictor,
    paths_of,
    require_program,
)
from gputopo.values.machine import Machine
from gputopo.values.run.events import Device
from gputopo.values.run.result import DeviceResult, Result, Throughput
from gputopo.workload import require_workload

ON_CPU = Placement("parameter_server", "cpu")
BATCH = 64


def spec_of(machine: Machine, model: str, gpus: tuple[int, ...], placing: Placement) -> dict[str, Any]:
    """The spec of a run as the result holds it."""
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    owner = placing.owner
    place = "/CPU:0" if placing.ps_device == "cpu" else None
    return {
        "task": "train",
        "model": model,
        "backend": "gpu",
        "devices": [
            {"tower": tower, "device": f"/GPU:{tower}", "gpu": gpu, "gpu_name": names[gpu]}
            for tower, gpu in enumerate(gpus)
        ],
        "precision": {"compute": "fp32", "xla": False},
        "data": {"source": "gpu", "folder": None},
        "variable_update": placing.variable_update,
        "ps_device": place if owner is None else f"/GPU:{gpus.index(owner)}",
        "all_reduce": placing.all_reduce,
        "exchange": {"ps_spread": placing.ps_device == "gpu:spread", "small_group": 10},
        "batch_size": BATCH,
    }


def adjusted(program: ProgramConstants, links: float, variables: float) -> ProgramConstants:
    """Return a program with `links` times its share of links, and `variables` times its cost of variables."""
    return msgspec.structs.replace(
        program,
        link_share=program.link_share * links,
        ring_share=program.ring_share * links,
        host_add_gb_per_s=program.host_add_gb_per_s * links,
        us_cpu=program.us_cpu * variables,
        us_add=program.us_add * variables,
        us_device=program.us_device * variables,
        us_ring=program.us_ring * variables,
    )


def run(
    machine: Machine,
    model: str,
    *,
    gpus: tuple[int, ...] = (0, 1),
    placing: Placement = ON_CPU,
    links: float = 1.0,
    variables: float = 1.0,
    compute_s: float = 0.1,
    slower: float = 1.0,
    **changed: Any,
) -> Result:
    """A run of `gpus` whose steps follow gputopo's constants with these two numbers, and its marks."""
    program = adjusted(require_program(DEFAULT_PROGRAM), links, variables)
    paths = paths_of(machine)
    predictor = StepPredictor(ModelCosts.of(require_workload(model)), program, paths)
    step = predictor.step(gpus, compute_s, placing)
    speed = len(gpus) * BATCH / (slower * step.step_s)
    wait = program.wait
    copies_s = step.weights_s / wait  # the mark of weights ends with the last one, and forward began before
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    result = Result(
        status="complete",
        exit_code=0,
        spec=spec_of(machine, model, gpus, placing),
        backend="gpu",
        steps=100,
        warmup_steps=10,
        steady_steps=0,
        batch_size=BATCH,
        throughput=Throughput(mean=speed, uncertainty=0.001 * speed, jitter=1.0, median=speed, total=speed),
        devices=tuple(
            DeviceResult(
                device=Device(tower=tower, device=f"/GPU:{tower}", gpu=gpu, gpu_name=names[gpu]),
                batch_size=BATCH,
                weights_ms=1e3 * copies_s,
                compute_ms=1e3 * (compute_s + step.weights_s - copies_s),
                other_ms=1e3 * (slower * step.step_s - compute_s - step.weights_s),
            )
            for tower, gpu in enumerate(gpus)
        ),
    )
    return msgspec.structs.replace(result, **changed)
