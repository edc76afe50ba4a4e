from typing import Any

import msgspec
import pytest

from gputopo.launch import Site, Target
from gputopo.planner import Request
from gputopo.values.errors import HardwareError, NoPlanError, UsageError
from gputopo.values.machine import Driver, Machine
from tests.findings.tensorflow_installs import installed
from tests.launch.specs import machine

NOTHING = Machine(source="live", driver=Driver(status="no_device"))


def target(of: Machine, environ: dict[str, str] | None = None, **more: object) -> Target:
    rehearsal_of = more.pop("rehearsal_of", None)
    require_gpu, cpu = bool(more.pop("require_gpu", False)), bool(more.pop("cpu", False))
    assert rehearsal_of is None or isinstance(rehearsal_of, str)
    request = Request(model="alexnet", **more)  # type: ignore[arg-type]
    site = Site(
        of, environ=environ or {}, rehearsal_of=rehearsal_of, require_gpu=require_gpu, cpu=cpu, alone=False
    )
    return site.target(request)


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
    with pytest.raises(UsageError, match="cannot be combined"):
        target(machine(), cpu=True, require_gpu=True)


def test_a_gpu_that_is_required_and_absent_is_exit_code_3() -> None:
    with pytest.raises(HardwareError) as error:
        target(NOTHING, require_gpu=True)
    assert error.value.exit_code == 3


@pytest.mark.parametrize("option", ["gpus", "exclude"])
def test_naming_gpus_where_there_are_none_is_bad_usage(option: str) -> None:
    named: dict[str, Any] = {option: (0,)}
    with pytest.raises(UsageError, match=f"--{option} needs GPUs, but this machine has none"):
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


def with_tensorflow(*models: str, **facts: object) -> Machine:
    """A machine with these GPUs, and TensorFlow 2.21 with its CUDA libraries."""
    whole = machine(len(models))
    gpus = tuple(
        msgspec.structs.replace(gpu, name=model) for gpu, model in zip(whole.gpus, models, strict=True)
    )
    driver = Driver(status="ok", cuda_version="12.8")
    return msgspec.structs.replace(whole, gpus=gpus, driver=driver, tensorflow=installed("2.21.0", **facts))


def test_gpus_that_tensorflow_cannot_use_are_left_to_others() -> None:
    mixed = with_tensorflow("Tesla K80", "Tesla T4", "Tesla K80", "Tesla T4")
    site = Site(mixed, environ={}, trains=True, alone=False)
    assert site.unusable.keys() == {0, 2}
    chosen = site.target(Request(model="alexnet"))
    assert chosen.plan.choice.gpus == (1, 3)
    assert any("compute capability 6.0 and later; this GPU has 3.7" in line for line in chosen.plan.warnings)
    with pytest.raises(HardwareError, match=r"GPU 2: TensorFlow 2\.21\.0 supports compute capability 6\.0"):
        site.target(Request(model="alexnet", gpus=(1, 2)))


def test_without_a_gpu_that_tensorflow_can_use_it_ends_with_the_reason() -> None:
    old = with_tensorflow("Tesla K80", "Tesla K80")
    with pytest.raises(HardwareError, match=r"GPU 0: TensorFlow 2\.21\.0 supports") as error:
        _ = Site(old, {}, trains=True).unusable
    assert error.value.exit_code == 3
    mixed = with_tensorflow("Tesla K80", "Tesla T4")
    with pytest.raises(HardwareError, match="GPU 0"):
        _ = Site(mixed, {"CUDA_VISIBLE_DEVICES": "GPU-00-aa"}, trains=True).unusable
    with pytest.raises(HardwareError, match="not installed") as error:
        _ = Site(machine(), {}, trains=True).unusable
    assert "pip install 'tensorflow[and-cuda]" in error.value.hint
