"""What a request may ask of a machine, and which GPUs can be used."""

import msgspec
import pytest

from gputopo.planner import Request, plan
from gputopo.values.errors import GputopoError, NoPlanError, UsageError
from gputopo.values.machine import (
    Fabric,
    Gpu,
    GpuProcess,
    Machine,
    Mig,
    PciNode,
    RemappedRows,
    Sample,
)
from tests.matrices import SEVEN, changed, machine_of


def error_of(kind: type[GputopoError], machine: Machine, request: Request) -> GputopoError:
    with pytest.raises(kind) as caught:
        plan(machine, request)
    assert "\n" not in caught.value.what + caught.value.hint
    return caught.value


COMPUTES = GpuProcess(pid=4321, kind="compute", name="python", memory_mib=9)


BAD: list[tuple[type[GputopoError], Request, str, str]] = [
    (NoPlanError, Request(num_gpus=8), "requested 8 GPUs, but this machine has 7", "--num-gpus 7"),
    (NoPlanError, Request(num_gpus=6, exclude=(0, 1)), "5 of the 7 can be used", "--num-gpus 5"),
    (NoPlanError, Request(exclude=(0, 1, 2, 3, 4, 5, 6)), "none of the 7 GPUs", "exclude fewer"),
    (NoPlanError, Request(num_gpus=3, gpus=(0, 1)), "2 of those in --gpus", "--num-gpus 2"),
    (UsageError, Request(gpus=(0, 7)), "no GPU 7", "0-6"),
    (UsageError, Request(gpus=(1, 2), exclude=(2,)), "both --gpus and --exclude", "one of them"),
    (UsageError, Request(ps="gpu:7"), "no GPU 7", "0-6"),
    (UsageError, Request(ps="gpu:3", exclude=(3,)), "is in --exclude", "one of them"),
    (UsageError, Request(ps="gpu:3", gpus=(0, 1)), "not one of the chosen GPUs 0 and 1", "--ps gpu:0"),
    (UsageError, Request(variable_update="replicated", ps="cpu"), "its own copy", "parameter_server"),
    (UsageError, Request(all_reduce="ring", ps="cpu"), "so --ps cpu has no effect", "only one of them"),
    (UsageError, Request(all_reduce="rng"), "no reduction 'rng'", "ring"),
    (UsageError, Request(all_reduce="psgpu#8"), "there are 7", "psgpu#7"),
    (UsageError, Request(all_reduce="tf_hierarchical", num_gpus=5), "is odd", "use hierarchical"),
]


@pytest.mark.parametrize(("kind", "request_", "what", "hint"), BAD)
def test_a_request_that_cannot_be_met_names_what_would_do(
    kind: type[GputopoError], request_: Request, what: str, hint: str
) -> None:
    error = error_of(kind, machine_of(SEVEN), request_)
    assert what in error.what
    assert hint in error.hint


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"lost": True}, "lost"),
        ({"recovery_action": "reset"}, "recovery action (reset)"),
        ({"fabric": Fabric(state="in progress")}, "not joined to its NVSwitches"),
        ({"mig": Mig(mode=True)}, "MIG"),
        ({"compute_mode": "PROHIBITED"}, "Prohibited"),
        ({"remapped_rows": RemappedRows(failure=True)}, "row remapping failed"),
        ({"compute_mode": "exclusive_process", "processes": (COMPUTES,)}, "in use by another program"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_left_out_with_the_reason(fields: dict[str, object], why: str) -> None:
    machine = changed(machine_of(SEVEN), 0, **fields)
    found = plan(machine, Request(num_gpus=2, prefer_pix=True))
    assert found.choice.gpus == (1, 2)
    assert found.refused[0].gpus == (0,)
    assert why in found.refused[0].reason
    assert plan(machine, Request()).choice.gpus == (1, 2, 3, 4, 5, 6)
    error = error_of(NoPlanError, machine, Request(gpus=(0, 1)))
    assert why in error.what
    assert "1-6" in error.hint


@pytest.mark.parametrize(
    "fields",
    [
        {"processes": (COMPUTES,)},
        {"compute_mode": "exclusive_process", "processes": (GpuProcess(pid=1, kind="graphics"),)},
        {"compute_mode": "exclusive_process", "processes": (COMPUTES, GpuProcess(pid=2, kind="mps"))},
        {
            "compute_mode": "exclusive_process",
            "processes": (GpuProcess(pid=1, kind="compute", name="nvidia-cuda-mps-server"),),
        },
        {"remapped_rows": RemappedRows(pending=True)},
        {"fabric": Fabric(state="completed", status="success")},
    ],
)
def test_a_gpu_that_another_program_can_be_started_on_is_left_in(fields: dict[str, object]) -> None:
    assert plan(changed(machine_of(SEVEN), 0, **fields), Request(num_gpus=2)).refused == ()


HELD = PciNode(address="0000:06:00.0", root="pci0000:00", kind="gpu", driver="vfio-pci")


def test_a_gpu_that_another_kernel_driver_holds_is_left_out_whether_it_has_a_number_or_not() -> None:
    machine = msgspec.structs.replace(machine_of(SEVEN), pci=(HELD,))
    found = plan(machine, Request(num_gpus=2))
    assert found.choice.gpus == (0, 1)
    assert found.refused[0].gpus is None
    assert found.refused[0].reason.startswith("0000:06:00.0 excluded: bound to the kernel driver vfio-pci")
    assert "0000:06:00.0 excluded" in error_of(NoPlanError, machine, Request(num_gpus=8)).what
    numbered = changed(machine, 1, pci_address="0000:06:00.0")
    found = plan(numbered, Request(num_gpus=2))
    assert (found.choice.gpus, found.refused[0].gpus) == ((0, 2), (1,))
    assert "vfio-pci" in error_of(NoPlanError, numbered, Request(gpus=(0, 1))).what
    assert plan(changed(numbered, 1, name="it worked"), Request(num_gpus=2)).refused == ()


def test_the_variables_cannot_go_to_a_lost_gpu() -> None:
    machine = changed(machine_of(SEVEN), 3, lost=True)
    assert "GPU 3 cannot be used" in error_of(NoPlanError, machine, Request(ps="gpu:3")).what


def test_a_machine_without_gpus_has_no_plan() -> None:
    assert "--from" in error_of(NoPlanError, Machine(source="a test"), Request(num_gpus=1)).hint


def test_a_reduction_that_is_asked_for_means_copies_on_every_gpu() -> None:
    chosen = plan(machine_of(SEVEN), Request(num_gpus=2, all_reduce="xring#2")).choice
    assert (chosen.variable_update, chosen.all_reduce, chosen.ps_device) == ("replicated", "ring#2", None)


def test_a_reduction_without_copies_is_refused() -> None:
    error = error_of(UsageError, machine_of(SEVEN), Request(all_reduce="ring", variable_update="independent"))
    assert "nothing is reduced" in error.what
    assert "--variable-update replicated" in error.hint


def test_a_hierarchical_reduction_names_its_groups_by_the_machines_gpus() -> None:
    def said(gpus: tuple[int, ...], reduction: str = "hierarchical") -> str:
        reasons = plan(machine_of(SEVEN), Request(gpus=gpus, all_reduce=reduction)).choice.reasons
        return " ".join(reason for reason in reasons if "group" in reason)

    assert "2 groups of close GPUs (GPUs 6 and 4; GPU 0)" in said((6, 0, 4))
    assert "one group" in said((3, 4, 5, 6))
    assert said((6,)) == ""
    assert said((6, 0, 4), "ring") == ""


def test_where_nobody_excluded_a_gpu_no_hint_advises_to_exclude_fewer() -> None:
    split = Machine(source="x", gpus=(Gpu(index=0, mig=Mig(mode=True)),))
    error = error_of(NoPlanError, split, Request())
    assert error.what.startswith("the only GPU cannot be used; GPU 0 excluded: in MIG mode")
    assert error.hint == "see gputopo inspect"


@pytest.mark.parametrize("order", [1, -1])
def test_a_gpu_that_was_lost_in_one_of_several_samples_is_left_out(order: int) -> None:
    idle = Sample(source="idle", gpus=({"index": 2, "utilization_percent.gpu": 0},))
    busy = Sample(
        source="busy", gpus=({"index": 2, "utilization_percent.gpu": 99}, {"index": 3, "lost": True})
    )
    machine = msgspec.structs.replace(machine_of(SEVEN), samples=(idle, busy)[::order])
    refused = plan(machine, Request(num_gpus=2)).refused
    assert [one.reason for one in refused if 3 in (one.gpus or ())] == ["GPU 3 excluded: lost, no answer"]
