"""What a request may ask of a machine, and which GPUs can be used."""

import msgspec
import pytest

from gputopo.planner import Request, plan
from gputopo.values.errors import GputopoError, NoPlanError, UsageError
from gputopo.values.machine import (
    Machine,
    PciNode,
)
from tests.matrices import SEVEN, changed, machine_of


def error_of(kind: type[GputopoError], machine: Machine, request: Request) -> GputopoError:
    with pytest.raises(kind) as caught:
        plan(machine, request)
    assert "\n" not in caught.value.what + caught.value.hint
    return caught.value


BAD: list[tuple[type[GputopoError], Request, str, str]] = [
    (NoPlanError, Request(num_gpus=8), "requested 8 GPUs, but this machine has 7", "--num-gpus 7"),
    (NoPlanError, Request(exclude=(0, 1, 2, 3, 4, 5, 6)), "none of the 7 GPUs", "exclude fewer"),
    (UsageError, Request(gpus=(0, 7)), "no GPU 7", "0-6"),
    (UsageError, Request(gpus=(1, 2), exclude=(2,)), "both --gpus and --exclude", "one of them"),
    (UsageError, Request(ps="gpu:3", exclude=(3,)), "is in --exclude", "one of them"),
    (UsageError, Request(ps="gpu:3", gpus=(0, 1)), "not one of the chosen GPUs 0 and 1", "--ps gpu:0"),
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


def test_a_gpu_that_cannot_be_used_is_refused_with_the_others() -> None:
    error = error_of(NoPlanError, changed(machine_of(SEVEN), 0, lost=True), Request(gpus=(0, 1)))
    assert "lost" in error.what
    assert "1-6" in error.hint


def test_a_gpu_that_another_kernel_driver_holds_is_named_in_refusals() -> None:
    held = PciNode(address="0000:06:00.0", root="pci0000:00", kind="gpu", driver="vfio-pci")
    machine = msgspec.structs.replace(machine_of(SEVEN), pci=(held,))
    assert "0000:06:00.0 excluded" in error_of(NoPlanError, machine, Request(num_gpus=8)).what
    numbered = changed(machine, 1, pci_address="0000:06:00.0")
    assert "vfio-pci" in error_of(NoPlanError, numbered, Request(gpus=(0, 1))).what


def test_the_variables_cannot_go_to_a_lost_gpu() -> None:
    machine = changed(machine_of(SEVEN), 3, lost=True)
    assert "GPU 3 cannot be used" in error_of(NoPlanError, machine, Request(ps="gpu:3")).what


def test_a_machine_without_gpus_has_no_plan() -> None:
    assert "--from" in error_of(NoPlanError, Machine(source="a test"), Request(num_gpus=1)).hint
