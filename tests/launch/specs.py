"""Specs and plans that several tests of the launcher use."""

import msgspec

from gputopo.values.machine import Gpu, Hop, Link, Machine
from gputopo.values.run.events import Device
from gputopo.values.run.plan import Candidate, Plan
from gputopo.values.run.spec import RunSpec


def cpu_spec(**changes: object) -> RunSpec:
    """Two CPU devices with the variables on the first."""
    spec = RunSpec(
        model="trivial",
        devices=tuple(
            Device(tower=tower, device=f"/CPU:{tower}", hop_to_variables="host") for tower in range(2)
        ),
        backend="cpu",
        ps_device="/CPU:0",
        batch_size=4,
        says=("No NVIDIA device: training on 2 logical CPU devices.",),
    )
    return msgspec.structs.replace(spec, **changes)


def machine(count: int = 4, *, uuids: bool = True) -> Machine:
    """GPUs 0 and 1 of one switch, 2 and 3 of another, joined by two NVLinks; PHB between the pairs."""
    gpus = tuple(
        Gpu(index=index, name=f"Card {index}", uuid=f"GPU-{index}{index}-aa" if uuids else None)
        for index in range(count)
    )
    links = tuple(
        Link(a=a, b=b, hop=Hop.PIX if a // 2 == b // 2 else Hop.PHB, nvlinks=2 if (a, b) == (2, 3) else 0)
        for a in range(count)
        for b in range(a + 1, count)
    )
    return Machine(source="live", gpus=gpus, links=links)


def plan_for(gpus: tuple[int, ...], ps_device: str | None = "cpu", **changes: object) -> Plan:
    """A plan that chose these GPUs, named by UUID."""
    choice = msgspec.structs.replace(Candidate(gpus=gpus, ps_device=ps_device), **changes)
    uuids = ",".join(f"GPU-{index}{index}-aa" for index in gpus)
    return Plan(
        choice=choice,
        candidates=(choice,),
        environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": uuids},
    )
