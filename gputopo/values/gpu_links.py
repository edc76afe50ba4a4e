"""Links of a GPU: PCIe, NVLink and the NVSwitch fabric, each with its declaration."""

from typing import Annotated

import msgspec

from gputopo.values.fields import Fact, Metric, Smi, Value, same_address


class Pcie(Value, frozen=True):
    """The PCIe link of a GPU. `gen_max` and `width_max`: the maximum of card and slot together.

    `limiting_hop`: PCI address of the bridge that is slower than the card on the path to the root. `aer`:
    advanced error reporting, {"correctable": 0, "nonfatal": 0, "fatal": 0}, from sysfs.
    """

    gen_now: Annotated[
        int | None,
        Fact(
            stability="state",
            smi=Smi(
                kind="step",
                xml="pci/pci_gpu_link_info/pcie_gen/current_link_gen",
                text="PCI/GPU Link Info/PCIe Generation/Current",
                csv="pcie.link.gen.current",
            ),
            metric=Metric("gpu_pcie_generation", "PCIe generation of the link now"),
        ),
    ] = None
    gen_max: Annotated[
        int | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi(
                kind="step",
                xml="pci/pci_gpu_link_info/pcie_gen/max_link_gen",
                text="PCI/GPU Link Info/PCIe Generation/Max",
                csv="pcie.link.gen.max",
            ),
            metric=Metric("gpu_pcie_generation_max", "what card and slot support together"),
        ),
    ] = None
    gen_max_device: Annotated[
        int | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi(
                kind="step",
                xml="pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",
                text="PCI/GPU Link Info/PCIe Generation/Device Max",
                csv="pcie.link.gen.gpumax",
            ),
            metric=Metric("gpu_pcie_generation_card", "what the card supports"),
        ),
    ] = None
    gen_max_host: Annotated[
        int | None,
        Fact(
            stability="fixed",
            smi=Smi(
                kind="step",
                xml="pci/pci_gpu_link_info/pcie_gen/max_host_link_gen",
                text="PCI/GPU Link Info/PCIe Generation/Host Max",
                csv="pcie.link.gen.hostmax",
            ),
            metric=Metric("gpu_pcie_generation_slot", "what the slot supports"),
        ),
    ] = None
    width_now: Annotated[
        int | None,
        Fact(
            unit="lanes",
            stability="state",
            smi=Smi(
                kind="width",
                xml="pci/pci_gpu_link_info/link_widths/current_link_width",
                text="PCI/GPU Link Info/Link Width/Current",
                csv="pcie.link.width.current",
            ),
            metric=Metric("gpu_pcie_lanes", "lanes of the link now"),
        ),
    ] = None
    width_max: Annotated[
        int | None,
        Fact(
            unit="lanes",
            stability="fixed",
            peers=True,
            smi=Smi(
                kind="width",
                xml="pci/pci_gpu_link_info/link_widths/max_link_width",
                text="PCI/GPU Link Info/Link Width/Max",
                csv="pcie.link.width.max",
            ),
            metric=Metric("gpu_pcie_lanes_max", "maximum number of lanes of the link"),
        ),
    ] = None
    replay_counter: Annotated[
        int | None,
        Fact(
            stability="state",
            counter=True,
            smi=Smi(kind="count", xml="pci/replay_counter", text="PCI/Replays Since Reset"),
            metric=Metric("gpu_pcie_replays_total", "packets that were sent again"),
        ),
    ] = None
    # the same packet was sent again four times: the link is trained again
    replay_rollovers: Annotated[
        int | None,
        Fact(
            stability="state",
            counter=True,
            smi=Smi(kind="count", xml="pci/replay_rollover_counter", text="PCI/Replay Number Rollovers"),
            metric=Metric(
                "gpu_pcie_replay_rollovers_total", "packets that were sent again until the link failed"
            ),
        ),
    ] = None
    limiting_hop: Annotated[str | None, Fact(info=True, same=same_address)] = None
    aer: Annotated[
        dict[str, int] | None,
        Fact(
            "AER errors",
            stability="state",
            counter=True,
            metric=Metric("gpu_pcie_errors_total", "errors of the PCIe link (AER)", by="severity"),
        ),
    ] = None


class NvLink(Value, frozen=True):
    """One NVLink port of a GPU. `gb_per_s`: its rate in one direction, as `nvidia-smi nvlink -s` shows it."""

    link: int
    active: Annotated[bool | None, Fact(metric=Metric("gpu_nvlink_active", "whether an NVLink is up"))] = None
    version: Annotated[int | None, Fact(info=True)] = None
    gb_per_s: Annotated[
        float | None,
        Fact(
            "speed",
            unit="GB/s",
            metric=Metric("gpu_nvlink_speed_bytes_per_second", "speed of an NVLink in one direction"),
        ),
    ] = None
    remote_pci_address: Annotated[str | None, Fact("remote PCI address", info=True, same=same_address)] = None
    # gpu, switch, ibmnpu
    remote_kind: Annotated[str | None, Fact(info=True)] = None
    errors: Annotated[
        dict[str, int],
        Fact(counter=True, metric=Metric("gpu_nvlink_errors_total", "errors of an NVLink", by="error")),
    ] = msgspec.field(default_factory=dict)


FABRIC_STATES = ("not started", "in progress", "completed")
# The health values of a fabric without a fault.
_SOUND = {
    "summary": "healthy",
    "bandwidth": "full",
    "route_recovery_in_progress": "false",
    "route_unhealthy": "false",
    "access_timeout_recovery": "false",
    "incorrect_configuration": "none",
}


class Fabric(Value, frozen=True):
    """The state of a GPU in the NVSwitch fabric, in the driver's terms.

    `state`: how far it has joined: not started, in progress, completed. `status`: the result of joining,
    "success" or an error. `health`: what has been reported since, {"summary": "healthy", "bandwidth":
    "full"}. All are nvidia-smi's words in lower case, and None on a GPU without NVSwitches. Only GPUs of the
    same clique reach one another. `nvidia-smi -q`, section Fabric.
    """

    state: Annotated[
        str | None, Fact(smi=Smi(kind="fabric", xml="fabric/state", text="Fabric/State", csv="fabric.state"))
    ] = None
    status: Annotated[
        str | None,
        Fact(smi=Smi(kind="fabric", xml="fabric/status", text="Fabric/Status", csv="fabric.status")),
    ] = None
    clique_id: Annotated[
        int | None,
        Fact(
            "fabric clique",
            stability="setting",
            peers=True,
            smi=Smi(kind="count", xml="fabric/cliqueId", text="Fabric/CliqueId", csv="fabric.cliqueId"),
        ),
    ] = None
    health: dict[str, str] | None = None

    @property
    def joining(self) -> bool:
        """Whether it has not joined yet: until then CUDA does not start on the GPU."""
        return self.state in FABRIC_STATES[:2]

    @property
    def is_joined(self) -> bool:
        """Whether it has joined, with any result."""
        return self.state == FABRIC_STATES[2]

    @property
    def is_accepted(self) -> bool | None:
        """Whether its NVSwitches accepted it; None: not reported."""
        return None if self.status is None else self.status == "success"

    @property
    def is_sound(self) -> dict[str, bool]:
        """Whether each part of its health is without a fault, for the parts with a known word for that."""
        health = self.health or {}
        return {part: health[part] == word for part, word in _SOUND.items() if part in health}
