"""What a user sees of drivers that are cold, slow, old or new, and of one that hangs at its first call."""

import json
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from gputopo.values import schema
from gputopo.values.finding import Inspection
from tests.cli.conftest import ByName, Call, Called
from tests.kit.driver_time import DriverTime
from tests.kit.faults import selected
from tests.kit.nvml import FakeNvml, installed

INIT = "nvmlInitWithFlags"
PERSISTENCE = "; persistence mode avoids this wait"


class Waits:
    """Commands on a driver that takes its time, which passes without anybody waiting for it."""

    def __init__(self, call: Call, tree_of: Callable[[str], Path], patch: pytest.MonkeyPatch) -> None:
        self._call, self._tree_of, self._patch = call, tree_of, patch
        self.time = DriverTime()

    def on(self, name: str, *command: str, spoilt: tuple[str, int | None, float] | None = None) -> Called:
        """Call gputopo on a machine; `spoilt`: a call, its GPU (None: all), the seconds it always takes."""
        fake = FakeNvml(selected(name))
        fake.sleep = self.time.sleep
        if spoilt is not None:
            function, gpu, takes_s = spoilt
            fake.spoil(function, lambda: self.time.sleep(takes_s), gpu)
        self._patch.setenv("GPUTOPO_ROOT", str(self._tree_of(name)))
        with installed(fake):
            return self._call(*command)


@pytest.fixture
def waits(call: Call, tree_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Waits:
    waiting = Waits(call, tree_of, monkeypatch)
    monkeypatch.setattr("gputopo.probes.child.look", waiting.time.look)
    return waiting


def waited_for(*states: str) -> str:
    return "".join(f"gputopo: waiting for the NVIDIA driver to {state}\n" for state in states)


def inspection(done: Called) -> Inspection:
    return schema.decode(done.out, Inspection, origin="stdout")


COLD = {
    "four+persistence_off@0+cold_gpu@1": [f"initialise GPU 1 (2 of 4){PERSISTENCE}"],
    "four+cold_init+cold_count+cold_gpus": [
        "start",
        "initialise GPU 0 (1 of 4)",
        *(f"initialise GPU {gpu} ({gpu + 1} of 4){PERSISTENCE}" for gpu in (1, 2, 3)),
    ],
}


@pytest.mark.parametrize("name", COLD)
def test_a_cold_driver_is_read_completely_and_what_it_does_is_printed_to_stderr(
    name: str, waits: Waits
) -> None:
    whole = waits.on(name, "inspect", "--json")
    assert whole.err == waited_for(*COLD[name])
    read = inspection(whole)
    assert (whole.code, read.machine.driver.status) == (0, "ok")
    warm = inspection(waits.on(name.partition("+")[0], "inspect", "--json")).machine
    assert [gpu.uuid for gpu in read.machine.gpus] == [gpu.uuid for gpu in warm.gpus]
    assert read.machine.missing == warm.missing
    assert read.machine.links == warm.links


def test_every_command_that_reads_this_machine_says_what_it_waits_for(waits: Waits) -> None:
    command = ("run", "--model", "alexnet", "--num-gpus", "1", "--dry-run")
    cold, warm = (waits.on(name, *command) for name in ("four+cold_init", "four"))
    assert cold.err == waited_for("start") + warm.err
    assert (cold.code, cold.out) == (warm.code, warm.out)


# A call that never returns: the call and the seconds that are reported, what is waited for, and how many
# GPUs are read whole.
HANGS: list[tuple[str, int | None, str, int, str, int]] = [
    (INIT, None, "nvmlInit", 60, "start", 0),
    ("nvmlDeviceGetName", 3, "nvmlDeviceGetName of GPU 3", 10, "answer about GPU 3", 3),
]


@pytest.mark.parametrize(("function", "gpu", "named", "limit_s", "waited", "whole"), HANGS)
def test_a_call_that_hangs_is_named_with_its_gpu_and_its_time(
    function: str, gpu: int | None, named: str, limit_s: int, waited: str, whole: int, waits: Waits
) -> None:
    done = waits.on("four", "inspect", "--json", spoilt=(function, gpu, inf))
    (hung,) = [one for one in inspection(done).findings if one.id == "driver.hung"]
    assert f"{named} did not return within {limit_s} s" in hung.says
    assert f"(sudo nvidia-smi -r -i {'0,1,2,3' if gpu is None else gpu})" in str(hung.remedy)
    assert (done.code, done.err) == (3, waited_for(waited))
    assert sum(one.processes is not None for one in inspection(done).machine.gpus) == whole


def test_slow_calls_that_all_return_end_at_a_limit_that_grows_with_the_gpus(waits: Waits) -> None:
    limits_s = {"four": 300, "dgx1": 420}
    for name, limit_s in limits_s.items():
        done = waits.on(name, "inspect", "--json", spoilt=("nvmlDeviceGetViolationStatus", None, 9.9))
        (hung,) = [one for one in inspection(done).findings if one.id == "driver.hung"]
        assert f"the driver did not give all answers within {limit_s} s" in hung.says


def missing(done: Called) -> dict[str, Any]:
    return dict(json.loads(done.out)["machine"]["missing"])


@pytest.mark.parametrize("driver", ["driver_580_65", "driver_580_82"])
def test_hardware_slowdowns_are_read_by_the_numbers_of_the_driver(
    driver: str, call: Call, on_scenario: ByName
) -> None:
    on_scenario(f"four+was_slowed_down@2+{driver}")
    (found,) = [one for one in inspection(call("inspect", "--json")).findings if one.id == "throttle.time"]
    assert found.subject.text == "gpu:2"
    assert found.evidence == {"hw_thermal_slowdown_s": 3600, "hw_power_brake_slowdown_s": 7200}


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        ("driver_570", "FUNCTION_NOT_FOUND, the driver is too old for it"),
        ("driver_580_76", "FIELD_NUMBER_UNKNOWN, its number changed near this driver version"),
    ],
)
def test_hardware_slowdowns_are_not_read_if_their_numbers_are_not_known(
    driver: str, reason: str, call: Call, on_scenario: ByName
) -> None:
    on_scenario(f"four+was_slowed_down@2+{driver}")
    done = call("inspect", "--json")
    machine = inspection(done).machine
    assert "hw_thermal_slowdown" not in (machine.gpus[2].violation_ns or {})
    names = [f"gpus[2].violation_ns.{name}" for name in ("hw_thermal_slowdown", "hw_power_brake_slowdown")]
    assert {missing(done)[name] for name in names} == {reason.partition(",")[0]}
    assert reason in " ".join(call("inspect", "--all").out.split())


def test_what_a_new_driver_no_longer_offers_is_missing_with_the_reason(
    call: Call, on_scenario: ByName
) -> None:
    on_scenario("four+clocks_deprecated")
    done = call("inspect", "--all")
    assert "DEPRECATED, no longer supported by the driver: graphics clock" in " ".join(done.out.split())
    assert missing(call("inspect", "--json"))["gpus[3].clocks_mhz.memory.application"] == "DEPRECATED"


def test_a_micro_vm_without_a_pci_bus_shows_what_the_driver_reports(call: Call, on_scenario: ByName) -> None:
    on_scenario("dual_socket_4_4+micro_vm")
    machine = inspection(call("inspect", "--json")).machine
    assert (machine.pci, machine.driver.status, len(machine.gpus)) == ((), "ok", 8)
    assert {gpu.power_w.limit for gpu in machine.gpus} == {250.0}
    table = call("inspect").out
    assert "unknown virtual machine" in table
    assert "gen3 x16" in table
