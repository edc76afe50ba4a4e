"""Which GPUs CUDA_VISIBLE_DEVICES leaves."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.planner import Request, hidden_gpus, plan_here, visible_gpus
from gputopo.values.errors import HardwareError, NoPlanError, UsageError
from gputopo.values.machine import Machine, Mig
from tests.launch.specs import machine
from tests.matrices import changed


def visible(value: str, of: Machine | None = None) -> tuple[int, ...] | None:
    return visible_gpus({"CUDA_VISIBLE_DEVICES": value}, of or machine())


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("0,2", (0, 2)),
        ("", ()),
        ("1,-1,2", (1,)),  # CUDA ends at the first entry that is none
        ("1,1,2", ()),  # named twice
        ("1st,2nd", (1, 2)),  # read like strtoul
        ("GPU-22-aa,GPU-0", (2, 0)),  # a UUID may be cut short
        ("GPU-", ()),  # of several it names none
        ("GPU-11-aa,2", (1,)),  # of one kind only
        ("MIG-GPU-22-aa/1/0,MIG-GPU-11-aa/1/0", (2,)),
    ],
)
def test_visible_gpus_follow_the_rules_of_cuda(value: str, seen: tuple[int, ...]) -> None:
    assert visible(value) == seen


def test_a_mig_instance_is_of_a_gpu_in_mig_mode() -> None:
    split = machine()
    for index in range(4):
        split = changed(split, index, mig=Mig(mode=index == 3))
    assert visible("MIG-1f2e", split) == (3,)


def test_without_the_variable_nothing_is_hidden() -> None:
    assert visible_gpus({}, machine()) is None
    assert hidden_gpus({}, machine()) == {}


def test_uuids_cannot_be_matched_where_the_machine_does_not_know_its_own() -> None:
    assert visible("GPU-11-aa", machine(uuids=False)) is None


def test_numbers_count_in_cudas_order_unless_the_pci_order_is_asked_for() -> None:
    plain = machine()
    backwards = msgspec.structs.replace(
        plain, gpus=tuple(msgspec.structs.replace(gpu, cuda_index=3 - gpu.index) for gpu in plain.gpus)
    )
    assert visible("0", backwards) == (3,)
    by_bus = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_gpus(by_bus, backwards) == (0,)


def test_hidden_gpus_are_left_out_and_that_is_reported_in_one_line() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "3,1"}
    found = plan_here(machine(uuids=False), Request(), environ, {})
    # A program counts them as its user does; a training places its variables itself.
    assert found.choice.gpus == (3, 1)
    assert found.environment["CUDA_VISIBLE_DEVICES"] == "3,1"
    assert plan_here(machine(), Request(model="alexnet"), environ, {}).choice.gpus == (1, 3)
    assert found.warnings == ("GPUs 0 and 2 excluded: hidden by CUDA_VISIBLE_DEVICES",)
    with pytest.raises(UsageError, match="GPU 2 is not visible here: CUDA_VISIBLE_DEVICES=3,1") as error:
        plan_here(machine(), Request(gpus=(2, 3)), environ, {})
    assert error.value.hint == "use 1, 3, or unset CUDA_VISIBLE_DEVICES"


CLAIMED = {1: "claimed by gputopo run (pid 123)"}


def test_gpus_that_others_have_claimed_are_left_out_with_by_whom() -> None:
    found = plan_here(machine(), Request(num_gpus=2, gpus=(0, 1, 2)), {}, CLAIMED)
    assert found.choice.gpus == (0, 2)
    assert found.warnings == ("GPU 1 excluded: claimed by gputopo run (pid 123)",)


@pytest.mark.parametrize(
    ("request_of", "what"),
    [
        ({"gpus": (0, 1)}, "GPU 1 is claimed by gputopo run (pid 123)"),
        ({"ps": "gpu:1"}, "GPU 1 is claimed by gputopo run (pid 123)"),
        ({"num_gpus": 4}, "requested 4 GPUs, and 3 of the 4 can be used (GPU 1 excluded)"),
    ],
)
def test_where_claims_are_in_the_way_the_exit_code_is_3(request_of: dict[str, Any], what: str) -> None:
    with pytest.raises(HardwareError) as error:
        plan_here(machine(), Request(**request_of), {}, CLAIMED)
    assert error.value.what == what
    assert "wait until it has ended" in error.value.hint


def test_a_request_that_could_not_be_met_without_claims_either_is_bad_usage() -> None:
    with pytest.raises(NoPlanError, match="this machine has 4"):
        plan_here(machine(), Request(num_gpus=5), {}, CLAIMED)


@given(st.text(alphabet="0123456789,- GPUMIxa", max_size=30))
def test_any_text_gives_gpus_that_are_there_each_once(value: str) -> None:
    seen = visible(value)
    assert seen is None or (set(seen) <= {0, 1, 2, 3} and len(set(seen)) == len(seen))
