from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest

from gputopo.values.machine import GpuProcess, Machine, NvLink
from tests.kit.distinct import DISTINCT
from tests.kit.faults import selected
from tests.kit.machines import leaves, read_double
from tests.kit.nvml import FakeNvml
from tests.kit.scenarios import SCENARIOS, changed

UNKNOWN_ERROR = 999
# A fact is read of each GPU in the same way: two are enough.
TWO = changed(replace(DISTINCT, gpus=DISTINCT.gpus[:2]), gpus={0: {"violations": {0: 11, 1: 12}}})

# What calls about GPU 0 return, of calls alike one. One with an alternative for the same fact costs nothing.
COSTS: Mapping[str, tuple[str, ...]] = {
    "nvmlDeviceGetName": ("name", "cuda_index", "lost"),
    "nvmlDeviceGetFieldValues[91,0]": (),
    "nvmlDeviceGetMaxClockInfo[0]": ("clocks_mhz.graphics.max", "cuda_index"),
    "nvmlDeviceGetCurrentClocksEventReasons": (),
    "nvmlDeviceGetPowerManagementLimitConstraints": ("power_w.min", "power_w.max"),
    "nvmlDeviceGetFieldValues[82,0]": ("temperature_c.memory",),
    "nvmlDeviceGetFieldValues[164,0]": ("nvlinks[0].gb_per_s",),
    "nvmlDeviceGetSramEccErrorStatus": ("ecc.counts.volatile.sram_", "ecc.counts.aggregate"),
    "nvmlDeviceGetMemoryErrorCounter[0,1,2]": ("ecc.counts.aggregate.dram_correctable",),
    "nvmlDeviceGetMigMode": ("mig.mode", "mig.mode_pending", "mig.instances"),
    "nvmlDeviceGetNvLinkState[0]": ("nvlinks[0]",),
    # Without the generation all counters are asked for, so there may be more of them.
    "nvmlDeviceGetNvLinkVersion[0]": ("nvlinks[0].version", "nvlinks[0].errors.effective_errors"),
    "nvmlDeviceGetViolationStatus[1]": ("violation_ns.thermal",),
}


@cache
def read_whole() -> Machine:
    return read_double(TWO)


@pytest.mark.parametrize("call", COSTS)
def test_a_refused_call_costs_only_its_own_fact(call: str) -> None:
    before = read_whole()
    fake = FakeNvml(TWO)
    fake.refuse(call, UNKNOWN_ERROR, gpu=0)
    after = read_double(fake)
    old, new = leaves(before), leaves(after)
    changed_facts = {
        path for path in {*old, *new} if old.get(path) != new.get(path) and not path.startswith("missing")
    }
    wanted = tuple(f"gpus[0].{path}" for path in COSTS[call])
    # CUDA's order is known of all GPUs or of none.
    wanted += tuple(f"gpus[{n}].cuda_index" for n in range(2)) if "cuda_index" in COSTS[call] else ()
    assert all(path.startswith(wanted) for path in changed_facts) if wanted else not changed_facts
    assert bool(changed_facts) == bool(wanted)
    reasons = {after.missing[path] for path in after.missing if path not in before.missing}
    assert reasons <= {"UNKNOWN", "CUDA_ORDER_NOT_CERTAIN"}
    assert ("UNKNOWN" in reasons) == bool(wanted)


def test_a_gpu_that_answers_everything_is_read_in_full() -> None:
    gpu = read_double(DISTINCT).gpus[0]
    assert (gpu.index, gpu.name, gpu.pci_address) == (0, "NVIDIA Test-100", "0000:44:00.0")
    assert gpu.uuid == "GPU-00000004-0000-4000-8000-000000000000"
    assert (gpu.vbios_version, gpu.gsp_firmware_version) == ("92.00.19.00.01", "550.163.01")
    assert (gpu.numa_node, gpu.cpu_affinity, gpu.cuda_index) == (0, "0-63", 0)
    clocks = gpu.clocks_mhz
    assert (clocks.graphics.now, clocks.sm.max) == (1305, 1410)
    assert (clocks.memory.application, clocks.video.boost) == (1215, 1280)
    assert (gpu.pstate, gpu.throttle.mask, gpu.throttle.reasons) == ("P0", 1, ("gpu_idle",))
    assert gpu.violation_ns is not None
    assert (gpu.violation_ns["thermal"], gpu.violation_ns["total_base_clocks"]) == (12, 18)
    assert (gpu.power_w.draw, gpu.power_w.enforced_limit, gpu.power_w.max) == (61.5, 398.0, 405.0)
    heat = gpu.temperature_c
    assert (heat.gpu, heat.memory, heat.slowdown, heat.shutdown, heat.margin) == (31, 33, 95, 98, 57)
    assert (heat.max_operating, heat.memory_max_operating, heat.target) == (85, 95, 80)
    assert (heat.margin_shutdown, heat.margin_slowdown, heat.margin_max_operating) == (-8, -2, -1)
    pcie = gpu.pcie
    assert (pcie.gen_now, pcie.gen_max, pcie.width_now, pcie.replay_counter) == (3, 3, 16, 4)
    assert (gpu.memory_mib.total, gpu.memory_mib.used) == (40960, 1024)
    assert (gpu.ecc.mode, gpu.ecc.corrected_aggregate, gpu.ecc.uncorrected_volatile) == (True, 6, 7)
    assert gpu.ecc.counts is not None
    assert (gpu.ecc.counts["volatile.sram_correctable"], gpu.ecc.counts["aggregate.dram_correctable"]) == (
        41,
        32,
    )
    assert gpu.ecc.counts["aggregate.sram_threshold_exceeded"] == 1
    assert (gpu.brand, gpu.architecture, gpu.pci_device_id) == ("Tesla", "Ampere", "20b0")
    assert (gpu.bar1_mib.total, gpu.bar1_mib.used, gpu.fan_percent) == (65536, 1, 30)
    assert (gpu.display_active, gpu.virtualization, gpu.mig.instances) == (False, "none", 0)
    assert (gpu.remapped_rows.uncorrectable, gpu.remapped_rows.pending) == (2, False)
    banks = gpu.remapped_rows.banks
    assert (banks.max, banks.high, banks.partial, banks.low, banks.none) == (630, 5, 3, 2, 1)
    assert (gpu.ecc.channel_repair_pending, gpu.ecc.tpc_repair_pending) == (True, False)
    assert gpu.ecc.unrepairable_memory is True
    assert (clocks.graphics.default_application, clocks.memory.default_application) == (1095, 1215)
    assert (gpu.retired_pages.single_bit, gpu.retired_pages.double_bit) == (2, 1)
    assert gpu.recovery_action == "drain and reset"
    assert (gpu.pci_subsystem_id, gpu.board_part_number) == ("134f10de", "692-2G500-0200-000")
    assert (gpu.inforom_version, gpu.c2c_mode, gpu.fabric.clique_id) == ("G500.0200.00.03", True, 7)
    assert (gpu.fabric.state, gpu.fabric.status) == ("completed", "insufficient resources")
    assert gpu.fabric.health == {
        "bandwidth": "degraded",
        "route_recovery_in_progress": "false",
        "route_unhealthy": "true",
        "access_timeout_recovery": "false",
        "incorrect_configuration": "insufficient nvlinks",
        "partition_assigned": "false",
    }
    assert (gpu.compute_mode, gpu.persistence_mode, gpu.mig.mode, gpu.lost) == ("default", True, False, False)


def test_processes_of_all_kinds_are_listed_by_program_without_arguments_or_folders() -> None:
    assert read_whole().gpus[1].processes == (
        GpuProcess(pid=4001, kind="compute", name="python", memory_mib=1024),
        GpuProcess(pid=77, kind="mps", name="python", memory_mib=None),
    )


def test_nvlinks_are_read_up_to_the_last_with_what_is_at_the_other_end() -> None:
    gpu = read_whole().gpus[0]
    assert gpu.nvlinks == tuple(
        NvLink(
            link=link,
            active=True,
            version=3,
            remote_pci_address="0000:45:00.0",
            remote_kind="gpu",
            gb_per_s=25.781,
            errors={"replay": 1, "recovery": 2, "crc_flit": 3, "crc_data": 4},
        )
        for link in (0, 1)
    )


def test_nvlinks_that_are_down_are_reported_as_such() -> None:
    gpu = read_double(SCENARIOS["dual_socket_4_4"]).gpus[0]
    assert gpu.nvlinks == (NvLink(link=0, active=False), NvLink(link=1, active=False))


def test_a_driver_too_old_for_nvlink_leaves_their_number_open() -> None:
    fake = FakeNvml(TWO)
    fake.without("nvmlDeviceGetNvLinkState")
    machine = read_double(fake)
    assert machine.gpus[0].nvlinks is None
    assert machine.missing["gpus[0].nvlinks"] == "FUNCTION_NOT_FOUND"
    assert machine.missing["links[0-1].nvlinks"] == "FUNCTION_NOT_FOUND"


def test_violation_times_that_are_all_refused_are_one_missing_fact() -> None:
    machine = read_double(SCENARIOS["desktop"])
    assert machine.gpus[0].violation_ns is None
    assert [path for path in machine.missing if "violation" in path] == ["gpus[0].violation_ns"]


def test_times_of_hardware_slowdown_are_kept_where_the_other_times_are_refused() -> None:
    desktop = selected("desktop+was_slowed_down@0+driver_580_82")
    machine = read_double(desktop)
    hours = {"hw_thermal_slowdown": 3600 * 10**9, "hw_power_brake_slowdown": 7200 * 10**9}
    assert machine.gpus[0].violation_ns == hours
    assert machine.missing["gpus[0].violation_ns.thermal"] == "NOT_SUPPORTED"


def test_numbers_of_power_smoothing_are_never_read_as_times() -> None:
    versions = ("550.163.01", "570.172.08", "575.51.03", "580.65.06", "580.82.07")
    for driver, nvml in {**{one: f"13.{one}" for one in versions}, "580.82.09": "?"}.items():
        scenario = replace(TWO, gpus=SCENARIOS["four"].gpus[:2], driver_version=driver, nvml_version=nvml)
        times = read_double(scenario).gpus[0].violation_ns
        assert times is not None
        assert {times.get(name, 0) for name in ("hw_thermal_slowdown", "hw_power_brake_slowdown")} == {0}


def test_a_gpu_lost_halfway_keeps_what_it_reported_before() -> None:
    fake = FakeNvml(TWO)
    fake.lose(1, after_calls=6)
    machine = read_double(fake)
    lost = machine.gpus[1]
    assert lost.lost
    assert lost.name == "NVIDIA Test-100"
    assert lost.memory_mib.total is None
    assert machine.missing["gpus[1].memory_mib.total"] == "GPU_IS_LOST"
    assert [gpu.lost for gpu in machine.gpus] == [False, True]


def test_a_gpu_without_a_handle_keeps_its_place_and_every_fact_has_the_reason() -> None:
    fake = FakeNvml(TWO)
    fake.refuse("nvmlDeviceGetHandleByIndex_v2", 8, gpu=0)
    machine = read_double(fake)
    assert machine.gpus[0].lost
    assert machine.gpus[0].name is None
    reason = "INSUFFICIENT_POWER"
    assert machine.missing["gpus[0].clocks_mhz.memory.now"] == reason
    assert machine.missing["gpus[0]"] == machine.missing["links[0-1].hop"] == reason
    assert machine.gpus[1].name == "NVIDIA Test-100"
