"""Which GPUs and placements are chosen of small machines, and the reasons: `golden/*.txt`."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.planner import Request, plan
from gputopo.values.machine import (
    Fabric,
    Gpu,
    GpuProcess,
    Hop,
    Link,
    Machine,
    MemoryMib,
    Mig,
    PciNode,
    RemappedRows,
    Sample,
    Throttle,
    UtilizationPercent,
)
from gputopo.values.run.plan import Plan, mode_words
from tests.kit.golden import assert_golden
from tests.matrices import DGX1_V100, SEVEN, changed, machine_of

Case = tuple[Machine, Request]
SEVEN_GPUS = machine_of(SEVEN)  # 0 to 2 behind one switch, 3 to 6 behind another
V100 = machine_of(DGX1_V100)


def of(machine: Machine = SEVEN_GPUS, **asked: Any) -> Case:
    return machine, Request(**asked)


def numbered(links: dict[tuple[int, int], Hop], **numa_nodes: int) -> Machine:
    """A machine of these pairs; `gpu0=1`: the NUMA node of a GPU."""
    indices = sorted({index for pair in links for index in pair})
    gpus = tuple(Gpu(index=index, numa_node=numa_nodes.get(f"gpu{index}")) for index in indices)
    return Machine(
        source="a test", gpus=gpus, links=tuple(Link(a=a, b=b, hop=hop) for (a, b), hop in links.items())
    )


CHOICES: dict[str, Case] = {
    "two of an island, and nothing is predicted of unknown GPUs": of(
        num_gpus=2, prefer_pix=True, model="alexnet"
    ),
    "sets that are alike are listed once": of(num_gpus=2),
    "more NVLinks come before fewer": of(V100, num_gpus=2, prefer_pix=True),
    "variables on the CPU": of(V100, num_gpus=2, prefer_pix=True, ps="cpu"),
    "no island and no number: all": of(machine_of("X SYS\nSYS X"), prefer_pix=True),
    "an island that is too small": of(num_gpus=5, prefer_pix=True),
    "one GPU holds its variables": of(num_gpus=1, prefer_pix=True, exclude=(0,)),
    "named GPUs that are in no island": of(gpus=(0, 3), prefer_pix=True),
    "numbers with gaps": of(numbered({(2, 5): Hop.SYS, (5, 7): Hop.PIX}), num_gpus=2, prefer_pix=True),
    "a GPU of another model that is not chosen": of(
        changed(changed(SEVEN_GPUS, 0, name="GTX 1070"), 6, name="GTX 1080 Ti"), num_gpus=2
    ),
    "every set has the holder of the variables": of(num_gpus=2, ps="gpu:5", prefer_pix=True),
    "the island of the holder": of(ps="gpu:1", prefer_pix=True),
    "independent": of(num_gpus=2, variable_update="independent"),
    "a reduction means copies on every GPU": of(num_gpus=2, all_reduce="xring#2"),
    "groups of a hierarchical reduction": of(gpus=(6, 0, 4), all_reduce="hierarchical"),
    "a hierarchical reduction of one GPU": of(gpus=(6,), all_reduce="hierarchical"),
}

BUSY: dict[str, object] = {
    "processes": (GpuProcess(pid=4321, kind="compute", name="python", memory_mib=7_000),),
    "memory_mib": MemoryMib(total=8_000, used=7_000, free=1_000),
}
BRAKED: dict[str, object] = {"throttle": Throttle(mask=0x88)}
LOADED: dict[str, object] = {
    "memory_mib": MemoryMib(total=10_240, used=9_184, free=640),
    "utilization_percent": UtilizationPercent(gpu=65),
    "processes": (),
}


def with_gpus(*changes: tuple[int, dict[str, object]], **asked: Any) -> Case:
    machine = SEVEN_GPUS
    for index, fields in changes:
        machine = changed(machine, index, **fields)
    return machine, Request(**asked)


TROUBLES: dict[str, Case] = {
    "an idle pair of the same island": with_gpus((0, BUSY), num_gpus=2),
    "idle GPUs come before close ones": with_gpus((0, BUSY), (4, BUSY), (5, BRAKED), num_gpus=3),
    "load without a process is use": with_gpus((0, LOADED), (1, LOADED), num_gpus=2, gpus=(0, 1, 2, 3)),
    "all idle ones; one in error can be used": with_gpus((0, BUSY), (5, BRAKED)),
    "all, as none is idle": with_gpus(*((index, BUSY) for index in range(7))),
    "the fewest in use": with_gpus((3, BUSY), (4, BUSY), (5, BRAKED), num_gpus=3, gpus=(3, 4, 5, 6)),
    "another island": with_gpus((0, BUSY), (1, BUSY), (3, BUSY), num_gpus=3, prefer_pix=True),
    "no idle island": with_gpus((0, BUSY), (3, BUSY), (4, BUSY), num_gpus=3, prefer_pix=True),
    "an island with an error": with_gpus((0, BUSY), (1, BRAKED), num_gpus=2, prefer_pix=True),
    "named GPUs are taken": with_gpus((0, BUSY), gpus=(0, 1)),
    "the holder of the variables is taken": with_gpus((0, BUSY), (1, BUSY), num_gpus=2, ps="gpu:0"),
    "a warning changes nothing": with_gpus((0, {"throttle": Throttle(mask=0x20)}), num_gpus=2),
}

COMPUTES = GpuProcess(pid=4321, kind="compute", name="python", memory_mib=9)
EXCLUSIVE = "exclusive_process"


SERVER = GpuProcess(pid=1, kind="compute", name="nvidia-cuda-mps-server")
HELD = PciNode(address="0000:06:00.0", root="pci0000:00", kind="gpu", driver="vfio-pci")
BESIDE_HELD = msgspec.structs.replace(SEVEN_GPUS, pci=(HELD,))
HELD_GPU = changed(BESIDE_HELD, 1, pci_address="0000:06:00.0")
IDLE = Sample(source="idle", gpus=({"index": 2, "utilization_percent.gpu": 0},))
LOST = Sample(source="busy", gpus=({"index": 2, "utilization_percent.gpu": 99}, {"index": 3, "lost": True}))
PAIR: dict[str, Any] = {"num_gpus": 2, "prefer_pix": True}
LEFT_OUT: dict[str, Case] = {
    "lost": with_gpus((0, {"lost": True}), **PAIR),
    "to be reset": with_gpus((0, {"recovery_action": "reset"}), **PAIR),
    "split": with_gpus((0, {"mig": Mig(mode=True)}), **PAIR),
    "row remapping failed": with_gpus((0, {"remapped_rows": RemappedRows(failure=True)}), **PAIR),
    "exclusive and in use": with_gpus((0, {"compute_mode": EXCLUSIVE, "processes": (COMPUTES,)}), **PAIR),
    "held by another kernel driver, without a number": of(BESIDE_HELD, num_gpus=2),
    "held by another kernel driver": of(HELD_GPU, num_gpus=2),
    "lost in the last sample": of(msgspec.structs.replace(SEVEN_GPUS, samples=(IDLE, LOST)), num_gpus=2),
}


def told(found: Plan) -> str:
    """What a plan chooses and says, in lines."""
    first, *others = found.candidates
    lines = [f"GPUs {first.gpus}: {mode_words(first)} ({first.evidence})"]
    lines += [f"  - {reason}" for reason in first.reasons]
    lines += [f"  warning: {warning}" for warning in found.warnings]
    lines += [f"  refused: {one.gpus} {one.reason}" for one in found.refused]
    lines += [f"  or {one.gpus}: {mode_words(one)}: {'; '.join(one.reasons)}" for one in others]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("name", "cases"), [("choices", CHOICES), ("troubles", TROUBLES), ("left-out", LEFT_OUT)]
)
def test_plans_are_as_they_were(name: str, cases: dict[str, Case]) -> None:
    text = "".join(f"{case}:\n{told(plan(*cases[case], keep=4))}\n\n" for case in cases)
    assert_golden(Path(__file__).with_name("golden") / f"{name}.txt", text)


@pytest.mark.parametrize(
    "fields",
    [
        {"processes": (COMPUTES,)},
        {"compute_mode": EXCLUSIVE, "processes": (GpuProcess(pid=1, kind="graphics"),)},
        {"compute_mode": EXCLUSIVE, "processes": (COMPUTES, GpuProcess(pid=2, kind="mps"))},
        {"compute_mode": EXCLUSIVE, "processes": (SERVER,)},
        {"remapped_rows": RemappedRows(pending=True)},
        {"fabric": Fabric(state="completed", status="success")},
    ],
)
def test_a_gpu_that_another_program_can_be_started_on_is_left_in(fields: dict[str, object]) -> None:
    assert plan(*with_gpus((0, fields), num_gpus=2)).refused == ()
