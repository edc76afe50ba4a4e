from pathlib import Path

import pytest

from gputopo.values.machine import Machine
from tests.kit.faults import FAULTS, broken
from tests.kit.machines import leaves, machine_of, read
from tests.kit.scenarios import SCENARIOS

NO_FAULTS = {"busy", "idle_link"}
# What is seen while a machine is watched, and not in one reading of it.
WATCHED = {"link_flapping", "xid_79"}


def machine(name: str, folder: Path, *faults: str) -> Machine:
    return read(broken(name, *faults), folder)


def differences(a: Machine, b: Machine) -> set[str]:
    old, new = leaves(a), leaves(b)
    paths = {path for path in {*old, *new} if old.get(path) != new.get(path)}
    return {path for path in paths if not path.startswith("missing")}


def home(fault: str) -> str:
    """Return a scenario that can have a fault: retired pages are of cards before Ampere, NVLinks of some."""
    on_dgx1 = ("retired_pending", "nvlink_down", "nvlink_errors", "peer_memory_off", "nic_missing")
    return "dgx1" if fault in on_dgx1 or fault.startswith("port_") else "four"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen_and_one_of_a_gpu_leaves_the_others_as_they_were(fault: str, tmp_path: Path) -> None:
    name, of_gpu = home(fault), FAULTS[fault].of_gpu
    whole = machine_of(name)
    seen = machine(name, tmp_path, f"{fault}@2" if of_gpu else fault)
    assert fault in WATCHED or differences(whole, seen)
    for index in (0, 1, 3) if of_gpu else ():
        if fault == "nvlink_down" and whole.gpus[index].nvlinks != seen.gpus[index].nvlinks:
            continue  # the other end
        old, new = leaves(whole.gpus[index]), leaves(seen.gpus[index])
        changed = {path for path in old if old[path] != new.get(path)}
        assert changed <= {"cuda_index"}  # of all GPUs or of none


def test_a_riser_and_a_badly_placed_card_differ_in_what_their_slots_can_do(tmp_path: Path) -> None:
    riser = machine("four", tmp_path / "a", "x1_riser").gpus[1].pcie
    loose = machine("four", tmp_path / "b", "width_degraded").gpus[1].pcie
    assert (riser.width_now, riser.width_max, riser.limiting_hop) == (1, 1, "0000:43:04.0")
    assert (loose.width_now, loose.width_max, loose.limiting_hop) == (8, 16, None)


def test_an_idle_link_and_a_degraded_one_differ_in_the_load(tmp_path: Path) -> None:
    idle = machine("four", tmp_path / "a", "idle_link").gpus[1]
    degraded = machine("four", tmp_path / "b", "gen_degraded_under_load").gpus[1]
    assert (idle.pcie.gen_now, idle.pcie.gen_max) == (degraded.pcie.gen_now, degraded.pcie.gen_max) == (1, 3)
    assert (idle.utilization_percent.gpu, idle.throttle.reasons) == (0, ("gpu_idle",))
    assert (degraded.utilization_percent.gpu, degraded.throttle.reasons) == (98, ())


def test_the_plain_machines_are_idle_and_free_of_errors() -> None:
    for name in SCENARIOS:
        for gpu in (gpu for gpu in machine_of(name).gpus if not gpu.lost):
            assert (gpu.utilization_percent.gpu, gpu.throttle.reasons) == (0, ("gpu_idle",))
            assert (gpu.persistence_mode, gpu.compute_mode, gpu.pcie.replay_counter) == (True, "default", 0)
            power, heat = gpu.power_w, gpu.temperature_c
            assert power.draw is not None
            assert power.limit is not None
            assert power.draw < power.limit / 5
            assert power.limit == power.default_limit == power.enforced_limit
            assert (heat.gpu or 0) + 40 < (heat.slowdown or 0) < (heat.shutdown or 0)
            assert not any((gpu.ecc.uncorrected_aggregate, gpu.ecc.corrected_aggregate))
            assert not any((gpu.ecc.counts or {}).values())
            assert not any((gpu.remapped_rows.pending, gpu.retired_pages.pending, gpu.remapped_rows.failure))
            assert not any((gpu.pcie.aer or {}).values())
            assert not any(process.kind == "compute" for process in gpu.processes or ())
            assert gpu.clocks_mhz.graphics.now <= gpu.clocks_mhz.graphics.max  # type: ignore[operator]
