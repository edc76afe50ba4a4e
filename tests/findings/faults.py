"""Faults by name: what is changed in a sound machine, and the ids that must be found, and no others."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from gputopo.values.machine import (
    Contradiction,
    Fabric,
    Gap,
    GpuProcess,
    Hop,
    KernelEvent,
    KernelEventKind,
    Machine,
    Nccl,
    NumaNode,
    NvLink,
    SpareRows,
    Unread,
)
from tests.findings.boxes import (
    UP,
    Change,
    address,
    all_of,
    down,
    driver,
    every_gpu,
    gpu,
    host,
    node,
    pair,
)

# Idle cards lower clocks and link, which is no fault.
IDLE: dict[str, Any] = {
    "pstate": "P8",
    "throttle": {"mask": 1, "reasons": ("gpu_idle",)},
    "utilization_percent": {"gpu": 0, "memory": 0},
    "pcie": {"gen_now": 1},
    "clocks_mhz": {"graphics": {"now": 135}, "sm": {"now": 135}, "memory": {"now": 405}},
    "power_w": {"draw": 25.0},
}


def throttled(index: int, mask: int) -> Change:
    return gpu(index, throttle={"mask": mask, "reasons": None})


def two_nodes(machine: Machine) -> Machine:
    nodes = (NumaNode(index=0, cpus="0-19"), NumaNode(index=1, cpus="20-39"))
    return host(sockets=2, numa_nodes=nodes)(machine)


LINKS_DOWN = tuple(NvLink(link=number, active=number > 1) for number in range(6))


def nccl(**facts: Any) -> Change:
    return lambda machine: replace(machine, nccl=Nccl(**facts))


def process(kind: str = "compute", memory_mib: int | None = 9_000) -> tuple[GpuProcess, ...]:
    return (GpuProcess(pid=4321, kind=kind, name="python", memory_mib=memory_mib),)


def without_links(machine: Machine) -> Machine:
    return replace(machine, links=machine.links[1:])


def doubted(**fields: Any) -> Change:
    return lambda machine: replace(machine, **fields)


def logged(index: int | None, kind: KernelEventKind, **fields: Any) -> Change:
    where = None if index is None else address(index)
    return doubted(kernel_events=(KernelEvent(kind=kind, text="text", pci_address=where, **fields),))


# By the number of the GPU that has the fault.
OF_A_GPU: dict[str, tuple[Callable[[int], Change], set[str]]] = {
    "Xid in the kernel log": (lambda n: logged(n, "xid", code=31), {"driver.xid"}),
    "Xid 79 in the kernel log": (lambda n: logged(n, "xid", code=79), {"gpu.lost"}),
    "AER in the kernel log": (lambda n: logged(n, "aer", severity="fatal"), {"pcie.errors"}),
    "failed to start": (lambda n: logged(n, "nvrm"), {"driver.kernel_error"}),
    "lost GPU": (lambda n: gpu(n, lost=True), {"gpu.lost"}),
    "GPU that is refused": (
        lambda n: lambda machine: doubted(missing={f"gpus[{n}]": "UNKNOWN"})(gpu(n, lost=True)(machine)),
        {"gpu.no_answer"},
    ),
    "reset required": (lambda n: gpu(n, recovery_action="reset"), {"gpu.reset_required"}),
    "reboot required": (lambda n: gpu(n, recovery_action="reboot"), {"gpu.reset_required"}),
    "new recovery action": (lambda n: gpu(n, recovery_action="bus reset"), {"gpu.reset_required"}),
    "reset recommended": (lambda n: gpu(n, recovery_action="drain and reset"), {"gpu.reset_recommended"}),
    "x1 riser": (lambda n: gpu(n, pcie={"width_now": 1}), {"pcie.width_degraded"}),
    "slot with one lane": (
        lambda n: all_of(
            gpu(n, pcie={"width_now": 1, "width_max": 1, "limiting_hop": down(n)}), node(down(n), max_width=1)
        ),
        {"pcie.slot_narrow"},
    ),
    "slot slower than the card": (
        lambda n: gpu(n, pcie={"gen_max_device": 4, "limiting_hop": down(n)}),
        {"pcie.slot_slower"},
    ),
    "link slow under load": (lambda n: gpu(n, pcie={"gen_now": 1}), {"pcie.generation_degraded"}),
    "replays": (lambda n: gpu(n, pcie={"replay_counter": 50_000}), {"pcie.replays"}),
    "PCIe errors": (lambda n: gpu(n, pcie={"aer": {"nonfatal": 3}}), {"pcie.errors"}),
    "throttled by heat before": (
        lambda n: gpu(n, violation_ns={"hw_thermal_slowdown": 1200 * 10**9, "sw_power_cap": 10**15}),
        {"throttle.time"},
    ),
    "error for a value": (
        lambda n: all_of(
            gpu(n, power_w={"draw": None}), doubted(missing={f"gpus[{n}].power_w.draw": "Unknown Error"})
        ),
        {"gpu.field_error"},
    ),
    "power limit": (
        lambda n: gpu(
            n, power_w={"limit": 200.0, "enforced_limit": 200.0, "draw": 199.0}, throttle={"mask": 4}
        ),
        {"power.limit_below_default"},
    ),
    "power limit of the server": (
        lambda n: gpu(n, power_w={"enforced_limit": 200.0}),
        {"power.limit_overruled"},
    ),
    "power cap": (lambda n: gpu(n, power_w={"draw": 299.0}, throttle={"mask": 4}), {"throttle.sw_power_cap"}),
    "sync boost": (lambda n: throttled(n, 0x10), {"throttle.sync_boost"}),
    "thermal slowdown of the driver": (lambda n: throttled(n, 0x20), {"throttle.sw_thermal_slowdown"}),
    "thermal slowdown of the card": (
        lambda n: gpu(n, throttle={"mask": 0x48}, temperature_c={"gpu": 88}),
        {"throttle.hw_thermal_slowdown"},
    ),
    "slowdown without a cause": (lambda n: throttled(n, 0x8), {"throttle.hw_slowdown"}),
    "power brake": (lambda n: throttled(n, 0x88), {"throttle.hw_power_brake_slowdown"}),
    "clocks of the display": (lambda n: throttled(n, 0x100), {"throttle.display_clock_setting"}),
    "limit of the board": (lambda n: throttled(n, 0x200), {"throttle.board_limit"}),
    "reliability": (lambda n: throttled(n, 0x400), {"throttle.reliability"}),
    "new throttle bit": (lambda n: throttled(n, 0x8000), {"throttle.unknown"}),
    "hot": (lambda n: gpu(n, temperature_c={"gpu": 84}), {"thermal.near_slowdown"}),
    "hot by margin": (
        lambda n: gpu(n, temperature_c={"slowdown": None, "gpu": 85, "margin": 1, "margin_slowdown": -2}),
        {"thermal.near_slowdown"},
    ),
    "hot memory": (lambda n: gpu(n, temperature_c={"memory": 90}), {"thermal.memory_hot"}),
    "ECC": (lambda n: gpu(n, ecc={"uncorrected_volatile": 2}), {"ecc.uncorrected"}),
    "ECC before the reboot": (
        lambda n: gpu(n, ecc={"uncorrected_aggregate": 12}),
        {"ecc.uncorrected_before"},
    ),
    "SRAM threshold": (
        lambda n: gpu(n, ecc={"counts": {"aggregate.sram_threshold_exceeded": 1}}),
        {"memory.sram_threshold_exceeded"},
    ),
    "channel repair pending": (
        lambda n: gpu(n, ecc={"channel_repair_pending": True}),
        {"memory.repair_pending"},
    ),
    "TPC repair pending": (lambda n: gpu(n, ecc={"tpc_repair_pending": True}), {"memory.repair_pending"}),
    "unrepairable memory": (lambda n: gpu(n, ecc={"unrepairable_memory": True}), {"memory.unrepairable"}),
    "no spare rows": (
        lambda n: gpu(n, remapped_rows={"banks": SpareRows(max=637, high=0, partial=0, low=0, none=3)}),
        {"memory.few_spare_rows"},
    ),
    "rows remapped": (lambda n: gpu(n, remapped_rows={"uncorrectable": 7}), {"memory.repaired"}),
    "remap pending": (lambda n: gpu(n, remapped_rows={"pending": True}), {"memory.remap_pending"}),
    "remap failed": (
        lambda n: gpu(n, remapped_rows={"pending": True, "failure": True}),
        {"memory.remap_failed"},
    ),
    "retirement pending": (lambda n: gpu(n, retired_pages={"pending": True}), {"memory.retirement_pending"}),
    "retired pages": (lambda n: gpu(n, retired_pages={"double_bit": 60}), {"memory.many_retired_pages"}),
    "NVLinks down": (lambda n: gpu(n, nvlinks=LINKS_DOWN), {"nvlink.down"}),
    "NVLink errors": (
        lambda n: gpu(
            n, nvlinks=tuple(NvLink(link=n, active=True, errors={"recovery": n}) for n in range(6))
        ),
        {"nvlink.errors"},
    ),
    "fabric not ready": (lambda n: gpu(n, fabric={"state": "in progress"}), {"nvlink.fabric_not_ready"}),
    "fabric unhealthy": (
        lambda n: gpu(
            n, fabric={"state": "completed", "status": "success", "health": {"bandwidth": "degraded"}}
        ),
        {"nvlink.fabric_unhealthy"},
    ),
    "mixed memory": (lambda n: gpu(n, memory_mib={"total": 8_080}), {"card.differs"}),
    "other VBIOS": (lambda n: gpu(n, vbios_version="88.00.13.00.01"), {"card.differs"}),
    "lower default power limit": (
        lambda n: gpu(
            n, power_w={"default_limit": 250.0, "max": 250.0, "limit": 250.0, "enforced_limit": 250.0}
        ),
        {"card.differs"},
    ),
    "ECC off": (lambda n: gpu(n, ecc={"mode": False, "mode_pending": False}), {"configuration.differs"}),
    "small BAR1": (lambda n: gpu(n, bar1_mib={"total": 256}), {"configuration.differs"}),
    "slot of another generation": (
        lambda n: gpu(n, pcie={"gen_max": 2, "gen_now": 2, "gen_max_host": None}),
        {"pcie.slot_differs"},
    ),
    "slow memory": (
        lambda n: gpu(n, clocks_mhz={"memory": {"max": 850, "now": 850, "application": None}}),
        {"clocks.memory_differs"},
    ),
    "other core maximum": (lambda n: gpu(n, clocks_mhz={"sm": {"max": 1600}}), {"clocks.core_differs"}),
    "application clocks": (
        lambda n: gpu(n, clocks_mhz={"sm": {"application": 1312, "now": 1312}}, throttle={"mask": 2}),
        {"configuration.differs"},
    ),
    "low core clock": (lambda n: gpu(n, clocks_mhz={"sm": {"now": 800}}), {"clocks.core_below_maximum"}),
    "low memory clock": (
        lambda n: gpu(n, clocks_mhz={"memory": {"now": 405}}),
        {"clocks.memory_below_maximum"},
    ),
    "slower than its equals": (
        lambda n: all_of(
            every_gpu(clocks_mhz={"sm": {"application": None, "max": 1900, "now": 1650}}),
            gpu(n, clocks_mhz={"sm": {"now": 1400}}),
        ),
        {"clocks.core_slower_than_peers"},
    ),
    "replay rollovers": (
        lambda n: gpu(n, pcie={"replay_counter": 12, "replay_rollovers": 3}),
        {"pcie.replays"},
    ),
    "busy": (lambda n: gpu(n, processes=process()), {"gpu.busy"}),
    "hung kernel": (
        lambda n: gpu(n, utilization_percent={"gpu": 100, "memory": 0}, power_w={"draw": 30.0}),
        {"gpu.hung_kernel", "power.below_peers"},
    ),
    "prohibited": (lambda n: gpu(n, compute_mode="prohibited"), {"configuration.compute_prohibited"}),
    "exclusive": (lambda n: gpu(n, compute_mode="exclusive_process"), {"configuration.differs"}),
    "MIG": (
        lambda n: gpu(n, mig={"mode": True, "mode_pending": True, "instances": 7}),
        {"configuration.mig_on"},
    ),
    "persistence": (lambda n: gpu(n, persistence_mode=False), {"configuration.persistence_off"}),
}
OF_A_GPU |= {
    "Xid of NVLink 5": (lambda n: logged(n, "xid", code=149, severity="fatal"), {"driver.xid"}),
    "recovery action": (
        lambda n: logged(n, "xid", code=154, severity="node reboot required"),
        {"driver.xid"},
    ),
    "other board": (lambda n: gpu(n, board_part_number="900-2G503-0000-000"), {"card.differs"}),
    "other slowdown temperature": (lambda n: gpu(n, temperature_c={"slowdown": 93}), {"card.differs"}),
    "other chip": (lambda n: gpu(n, pci_device_id="1db5"), {"card.differs"}),
    "other subsystem": (lambda n: gpu(n, pci_subsystem_id="124910de"), {"card.differs"}),
    "C2C off": (lambda n: all_of(every_gpu(c2c_mode=True), gpu(n, c2c_mode=False)), {"nvlink.differs"}),
    "other clique": (
        lambda n: all_of(
            every_gpu(fabric=Fabric(state="completed", status="success", clique_id=1)),
            gpu(n, fabric={"clique_id": 2}),
        ),
        {"nvlink.differs"},
    ),
    "low power under load": (lambda n: gpu(n, power_w={"draw": 100.0}), {"power.below_peers"}),
}
OF_THE_MACHINE: dict[str, tuple[Change, set[str]]] = {
    "SXid in the kernel log": (logged(None, "sxid", code=20034, severity="fatal"), {"nvlink.errors"}),
    "driver of two counts": (
        doubted(contradictions=(Contradiction(fact="gpus", said={"handles": "16", "UUIDs": "8"}),)),
        {"machine.contradiction"},
    ),
    "switch with a slow uplink": (
        all_of(node(UP, max_width=4), *(gpu(n, pcie={"limiting_hop": UP}) for n in range(4))),
        {"pcie.slow_bridge", "pcie.shared_uplink"},
    ),
    "thin NVLink bridge": (
        all_of(every_gpu(nvlinks=None), pair(0, 1, nvlinks=12), pair(2, 3, nvlinks=10)),
        {"nvlink.thin_bridge"},
    ),
    "P2P off": (pair(0, 1, p2p_read="NOT_SUPPORTED", p2p_write="NOT_SUPPORTED"), {"p2p.off"}),
    "ACS on": (all_of(host(acs="on"), node(down(0), acs=True)), {"p2p.acs_on"}),
    "ACS on keeps P2P off": (
        all_of(node(down(0), acs=True), pair(0, 1, p2p_read="CHIPSET_NOT_SUPPORTED")),
        {"p2p.acs_on"},
    ),
    "IOMMU keeps P2P off": (
        all_of(host(iommu="translated"), pair(0, 1, p2p_read="NOT_SUPPORTED")),
        {"p2p.iommu"},
    ),
    "NCCL by SHM beside NVLink": (
        all_of(every_gpu(nvlinks=None), pair(0, 1, nvlinks=4, nccl=("SHM/direct",)), nccl()),
        {"nccl.staged"},
    ),
    "NCCL by TCP": (nccl(hosts=2, between_hosts=("NET/Socket",)), {"nccl.network"}),
    "NCCL without GPUDirect": (nccl(hosts=2, between_hosts=("NET/IB",)), {"nccl.network"}),
    "NCCL warns": (nccl(warnings=("Cuda failure 'out of memory'",)), {"nccl.warning"}),
    "mixed cards": (gpu(3, name="Tesla V100-PCIE-16GB"), {"machine.mixed_models"}),
    "application clocks of all": (
        every_gpu(clocks_mhz={"graphics": {"application": 1380}, "sm": {"application": 1380}}),
        {"clocks.application_below_default"},
    ),
    "unknown card": (every_gpu(name="NVIDIA Future 9000"), {"card.no_expectation"}),
    "CUDA order": (all_of(gpu(0, cuda_index=1), gpu(1, cuda_index=0)), {"cuda.order_differs"}),
    "node not reported": (
        all_of(two_nodes, gpu(1, numa_node=None, cpu_affinity=None)),
        {"numa.affinity_cut"},
    ),
    "driver of two versions": (driver(kernel_module_version="535.54.03"), {"driver.version_mismatch"}),
    "program that reports a fault": (logged(None, "program", device_driver="gpu_burn"), {"program.error"}),
    "container": (all_of(host(container="docker"), doubted(pci=())), {"topology.hidden"}),
    "SYS within a node": (pair(0, 1, hop=Hop.SYS), {"topology.doubtful"}),
    "CPUs of a job": (gpu(1, cpu_affinity="4,9"), {"numa.affinity_cut"}),
    "gap": (
        doubted(gaps=(Gap(source="a", text="8 GPUs are attached and 7 are listed", attached=8, listed=7),)),
        {"capture.incomplete"},
    ),
    "contradiction": (
        doubted(contradictions=(Contradiction(fact="gpus[1].name", said={"a": "x", "b": "y"}),)),
        {"machine.contradiction"},
    ),
    "recording of an unknown host": (
        doubted(contradictions=(Contradiction(fact="host.fingerprint", said={"a": "none", "b": "1f"}),)),
        {"machine.unknown_host"},
    ),
    "two places": (
        doubted(contradictions=(Contradiction(fact="links[0-1].hop", said={"a": "PIX", "b": "PHB"}),)),
        {"topology.contradiction"},
    ),
    "ECC off everywhere": (every_gpu(ecc={"mode": False, "mode_pending": False}), {"ecc.off"}),
    "pair not known": (without_links, {"topology.unknown"}),
    "line not understood": (doubted(unread=(Unread(source="a", line=1, text="?"),)), {"capture.unread"}),
}
FAULTS = {name: (make(1), ids) for name, (make, ids) in OF_A_GPU.items()} | OF_THE_MACHINE
