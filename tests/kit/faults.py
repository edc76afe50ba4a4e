"""Named faults for any scenario of the kit: one thing each; they can be combined.

`broken("four", "power_cap_low@2", "acs_on")`, or on a command line `four+power_cap_low@2+acs_on`. The number
after @ is the GPU of a fault. Without it, this is GPU 1 (GPU 0 if there is no other, and for
`order_swapped`). `FAULTS` is the table. Its states `busy` and `idle_link` are not faults: nothing should be
found on them. `DRIVER_STATES` are selected in the same way: a cold driver (which takes its time), another
driver version. A fault that the cards of a scenario cannot report (ECC on a GeForce) raises ValueError.
"""

from collections.abc import Callable
from typing import NamedTuple

from tests.kit import driver_states, gpu_faults, host_faults
from tests.kit.scenarios import SCENARIOS
from tests.kit.specs import Scenario


class Fault(NamedTuple):
    """A fault: its description, the change itself, and whether it is about one GPU."""

    says: str
    apply: Callable[..., Scenario]
    of_gpu: bool = True
    usual_gpu: int = 1

    def on(self, scenario: Scenario, gpu: int | None = None) -> Scenario:
        """Return the scenario with the fault. Raises ValueError for an unknown GPU."""
        if not self.of_gpu:
            if gpu is not None:
                raise ValueError("this fault is about the whole machine, not about one GPU")
            return self.apply(scenario)
        number = min(self.usual_gpu, len(scenario.gpus) - 1) if gpu is None else gpu
        if not 0 <= number < len(scenario.gpus):
            raise ValueError(f"{scenario.name} has no GPU {number}")
        return self.apply(scenario, number)


def _gpu(says: str, apply: Callable[[Scenario, int], Scenario]) -> Fault:
    return Fault(says, apply)


def _box(says: str, apply: Callable[[Scenario], Scenario]) -> Fault:
    return Fault(says, apply, of_gpu=False)


_G, _H, _D = gpu_faults, host_faults, driver_states

FAULTS: dict[str, Fault] = {
    # No faults
    "busy": _gpu("at work: full clocks, full load, no process to be seen", _G.busy),
    "idle_link": _box("every link idles at the first generation, as on idle cards", _G.idle_link),
    # Links
    "x1_riser": _gpu("in a slot of one lane", _G.x1_riser),
    "width_degraded": _gpu("eight of sixteen lanes, in a slot that has all", _G.width_degraded),
    "gen_degraded_under_load": _gpu("busy, and the link at the first generation", _G.gen_degraded_under_load),
    "slot_slower": _gpu("the slot is of an earlier generation than the card", _G.slot_slower),
    "link_flapping": _gpu("busy, and the link changes its generation at each look", _G.link_flapping),
    "replay_errors": _gpu("1200 PCIe packets had to be sent again", _G.replay_errors),
    "aer_errors": _gpu("the kernel counted 1200 correctable and 3 nonfatal errors", _G.aer_errors),
    "nvlink_down": _gpu("its first NVLink is down, at both ends", _G.nvlink_down),
    "nvlink_errors": _gpu("its first NVLink counts errors", _G.nvlink_errors),
    "fabric_not_ready": _gpu("it has not joined its NVSwitches", _G.fabric_not_ready),
    # Clocks, power, heat
    "power_cap_low": _gpu("idle, with the power limit set to 60 % of the default", _G.power_cap_low),
    "power_capped": _gpu("busy, throttled by its (default) power limit", _G.power_capped),
    "thermal_slowdown": _gpu("busy, hot and throttled by the driver", _G.thermal_slowdown),
    "hw_slowdown": _gpu("busy, throttled by the power brake signal", _G.hw_slowdown),
    "memory_clock_low": _gpu("its memory can do 10 % less than that of its peers", _G.memory_clock_low),
    "order_swapped": Fault(
        "slower than its peers, so that CUDA counts it last", _G.order_swapped, usual_gpu=0
    ),
    # Errors
    "lost": _gpu("fallen off the bus: counted, and refuses all", _G.lost),
    "ecc_uncorrected": _gpu("three uncorrected memory errors since boot", _G.ecc_uncorrected),
    "remap_pending": _gpu("a remapped row waits for a reset", _G.remap_pending),
    "retired_pending": _gpu("a retired page waits for a reboot", _G.retired_pending),
    "xid_79": _gpu("Xid 79 while it is watched", _G.xid_79),
    # Settings and what else is on the card
    "busy_process": _gpu("busy with somebody's process", _G.busy_process),
    "exclusive_mode": _gpu("one process at a time may use it", _G.exclusive_mode),
    "prohibited_mode": _gpu("no process may use it", _G.prohibited_mode),
    "persistence_off": _gpu("the driver lets go of it when nobody uses it", _G.persistence_off),
    "mixed_cards": _gpu("of another model than its peers", _G.mixed_cards),
    "mixed_memory": _gpu("with half the memory of its peers", _G.mixed_memory),
    # The machine
    "acs_on": _box("access control sends peer traffic up to the root", _H.acs_on),
    "iommu_translated": _box("the IOMMU translates the GPUs' addresses", _H.iommu_translated),
    "p2p_off": _box("the chipset carries no peer-to-peer traffic", _H.p2p_off),
    "driver_mismatch": _box(
        "the library and the kernel module are of different versions", _H.driver_mismatch
    ),
    "driver_not_loaded": _box("no kernel module, no /dev/nvidia*", _H.driver_not_loaded),
    "container_hidden": _box("in a container that shows no PCI devices", _H.container_hidden),
    # Network cards
    "port_down": _box("the second network card has no link", _H.port_down),
    "port_slow": _box("the second network card's link is on one lane", _H.port_slow),
    "port_mtu": _box("the second network card's interface has another MTU", _H.port_mtu),
    "port_errors": _box("the second network card counts errors", _H.port_errors),
    "peer_memory_off": _box("the kernel module for GPUDirect RDMA is not loaded", _H.peer_memory_off),
    "nic_missing": _box("the second network card is gone", _H.nic_missing),
    "no_privileges": _box("config space is not readable: access control is not known", _H.no_privileges),
}

DRIVER_STATES: dict[str, Fault] = {
    "cold_init": _box("nvmlInit takes 12 s", _D.cold_init),
    "cold_count": _box("the count of the GPUs takes 12 s", _D.cold_count),
    "cold_gpu": _gpu("its first handle takes 12 s", _D.cold_gpu),
    "cold_gpus": _box("the first handle of each GPU takes 9 s", _D.cold_gpus),
    "micro_vm": _box("in a virtual machine without a PCI bus", _D.micro_vm),
    "clocks_deprecated": _box("application clocks are answered with DEPRECATED", _D.clocks_deprecated),
    "was_slowed_down": _gpu("slowed down by the hardware for hours", _D.was_slowed_down),
    "driver_570": _box("driver 570.172.08", _D.driver_570),
    "driver_580_65": _box("driver 580.65.06", _D.driver_580_65),
    "driver_580_76": _box("driver 580.76.05", _D.driver_580_76),
    "driver_580_82": _box("driver 580.82.07", _D.driver_580_82),
}
_ALL = FAULTS | DRIVER_STATES


def broken(scenario: str | Scenario, *faults: str) -> Scenario:
    """Return a scenario (or the scenario with this name) with faults, each as NAME or NAME@GPU.

    Raises ValueError for an unknown name, or if a fault does not fit the scenario.
    """
    if isinstance(scenario, str):
        if scenario not in SCENARIOS:
            raise ValueError(f"no scenario {scenario!r}; there are {', '.join(SCENARIOS)}")
        scenario = SCENARIOS[scenario]
    for fault in faults:
        name, at, number = fault.partition("@")
        if name not in _ALL or (at and not number.isdecimal()):
            raise ValueError(
                f"no fault {fault!r}; there are {', '.join(_ALL)}, each with @GPU where it is one's"
            )
        scenario = _ALL[name].on(scenario, int(number) if at else None)
    return scenario


def selected(text: str) -> Scenario:
    """Return the scenario of SCENARIO+FAULT+FAULT@GPU. Raises ValueError as `broken` does."""
    name, *faults = text.split("+")
    return broken(name, *faults)
