from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.spec.target import Target, target_of
from gputopo.planner import Request
from gputopo.planner.cpu_devices import MAX_CPU_DEVICES, cpu_plan
from gputopo.values.errors import HardwareError, NoPlanError, UsageError
from gputopo.values.machine import Driver, Machine
from tests.launch.specs import machine

NOTHING = Machine(source="live", driver=Driver(status="no_device"))


def target(of: Machine, environ: dict[str, str] | None = None, **more: object) -> Target:
    rehearsal_of = more.pop("rehearsal_of", None)
    require_gpu, cpu = bool(more.pop("require_gpu", False)), bool(more.pop("cpu", False))
    assert rehearsal_of is None or isinstance(rehearsal_of, str)
    request = Request(model="alexnet", **more)  # type: ignore[arg-type]
    return target_of(
        of, request, environ=environ or {}, rehearsal_of=rehearsal_of, require_gpu=require_gpu, cpu=cpu
    )


def test_a_machine_with_gpus_is_planned_for_and_trained_on() -> None:
    chosen = target(machine(), num_gpus=2)
    assert (chosen.backend, chosen.plan.choice.gpus, chosen.why_cpu) == ("gpu", (2, 3), None)
    assert chosen.plan.environment["CUDA_VISIBLE_DEVICES"] == "GPU-22-aa,GPU-33-aa"


def test_without_a_device_it_is_cpu_devices_and_the_reason() -> None:
    chosen = target(NOTHING, num_gpus=3, prefer_pix=True)
    assert (chosen.backend, chosen.machine, chosen.why_cpu) == ("cpu", None, "No NVIDIA device")
    assert chosen.plan.environment == {"CUDA_VISIBLE_DEVICES": "-1"}


def test_a_broken_driver_never_falls_back_to_the_cpu_unless_it_is_requested() -> None:
    cases: list[str] = [
        *("not_loaded", "library_missing", "version_mismatch", "no_permission", "other_driver", "failed"),
        *("hung", "crashed"),
    ]
    for status in cases:
        broken = Machine(source="live", driver=Driver(status=status))  # type: ignore[arg-type]
        with pytest.raises(HardwareError) as error:
            target(broken)
        assert error.value.exit_code == 3
        assert "no GPU of this machine can be used" in error.value.what
        assert "--cpu" in error.value.hint
        chosen = target(broken, cpu=True, num_gpus=3)
        assert (chosen.backend, chosen.why_cpu, chosen.cpu_devices) == ("cpu", "--cpu", 3)


def test_cpu_devices_may_be_requested_beside_gpus() -> None:
    chosen = target(machine(), cpu=True)
    assert (chosen.backend, chosen.machine, chosen.plan.environment) == (
        "cpu",
        None,
        {"CUDA_VISIBLE_DEVICES": "-1"},
    )
    with pytest.raises(UsageError, match="contradict"):
        target(machine(), cpu=True, require_gpu=True)


def test_a_gpu_that_is_required_and_absent_is_exit_code_3() -> None:
    with pytest.raises(HardwareError) as error:
        target(NOTHING, require_gpu=True)
    assert error.value.exit_code == 3


@pytest.mark.parametrize("option", ["gpus", "exclude"])
def test_naming_gpus_where_there_are_none_is_bad_usage(option: str) -> None:
    named: dict[str, Any] = {option: (0,)}
    with pytest.raises(UsageError, match=f"--{option} names GPUs, and there is none"):
        target(NOTHING, **named)


def test_a_capture_is_rehearsed_on_cpu_devices_and_keeps_its_machine() -> None:
    captured = msgspec.structs.replace(machine(), source="nvidia-smi topo")
    chosen = target(captured, rehearsal_of="7gforce", num_gpus=2, environ={"CUDA_VISIBLE_DEVICES": "-1"})
    assert (chosen.backend, chosen.rehearsal_of, chosen.plan.choice.gpus) == ("cpu", "7gforce", (2, 3))
    assert chosen.machine == captured


def test_only_gpus_that_the_caller_may_see_are_chosen() -> None:
    chosen = target(machine(), {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert chosen.plan.choice.gpus == (0, 1)
    with pytest.raises(NoPlanError):
        target(machine(), {"CUDA_VISIBLE_DEVICES": "0,1"}, num_gpus=3)


def test_hiding_all_gpus_trains_on_the_cpu_and_states_why() -> None:
    chosen = target(machine(), {"CUDA_VISIBLE_DEVICES": ""})
    assert (chosen.backend, chosen.why_cpu) == ("cpu", "CUDA_VISIBLE_DEVICES hides all GPUs")
    with pytest.raises(HardwareError, match="hides all GPUs"):
        target(machine(), {"CUDA_VISIBLE_DEVICES": ""}, require_gpu=True)


@given(
    devices=st.integers(1, MAX_CPU_DEVICES),
    ps=st.sampled_from(["auto", "cpu", "gpu:0", "gpu:spread", "gpu:63"]),
    update=st.sampled_from(["auto", "parameter_server", "replicated", "independent"]),
    reduction=st.sampled_from([None, "copy", "ring#2"]),
)
def test_a_plan_is_consistent_or_refused(devices: int, ps: str, update: str, reduction: str | None) -> None:
    try:
        choice = cpu_plan(None, devices=devices, ps=ps, variable_update=update, all_reduce=reduction).choice
    except UsageError:
        return
    assert (choice.ps_device is not None) == (choice.variable_update == "parameter_server")
    assert (choice.all_reduce is not None) == (choice.variable_update == "replicated")
