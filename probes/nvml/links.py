"""NVML questions about links: PCIe, NVLink, the path to another GPU."""

from gputopo.probes.nvml.calling import Handle, NotReadError, NvmlDoor, address_of
from gputopo.probes.nvml.words import (
    NVLINK_COUNT_ERRORS,
    NVLINK_DL_ERRORS,
    NVLINK_ERRORS,
    NVLINK_GENERATIONS,
    NVLINK_REMOTES,
    P2P_STATUS,
)
from gputopo.values.machine import Hop

_NOT_AVAILABLE = 0xFFFFFFFF  # NVML_VALUE_NOT_AVAILABLE as an unsigned int
_REPLAY_ROLLOVERS = 95  # NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER
_PCIE_BYTES = (198, 197)  # NVML_FI_DEV_PCIE_COUNT_RX_BYTES, _TX_BYTES
_PCIE_UTIL = {"out": 0, "in": 1}  # nvmlPcieUtilCounter_t: TX, RX, as the GPU sees it

_LINK_COUNT = 91  # NVML_FI_DEV_NVLINK_LINK_COUNT
# Fields of an NVLink's speed, in MB/s: by link (newer GPUs), of links 0 to 5, of 6 to 11, of all alike.
_SPEED = 164  # NVML_FI_DEV_NVLINK_GET_SPEED
_SPEED_OF_LINK = {link: 84 + link if link < 6 else 126 + link for link in range(12)}
_SPEED_OF_ALL = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON


class LinkQuestions(NvmlDoor):
    """PCIe and NVLink."""

    def pcie(self, gpu: Handle, what: str) -> int:
        """Return gen_now, gen_max, gen_max_device, width_now or width_max.

        In some VMs the driver answers 0.
        """
        function = {
            "gen_now": "nvmlDeviceGetCurrPcieLinkGeneration",
            "gen_max": "nvmlDeviceGetMaxPcieLinkGeneration",
            "gen_max_device": "nvmlDeviceGetGpuMaxPcieLinkGeneration",
            "width_now": "nvmlDeviceGetCurrPcieLinkWidth",
            "width_max": "nvmlDeviceGetMaxPcieLinkWidth",
        }[what]
        number = int(self.ask(function, gpu))
        if number in (0, _NOT_AVAILABLE):
            raise NotReadError("UNKNOWN")
        return number

    def pcie_replays(self, gpu: Handle) -> int:
        """Return how often a PCIe packet had to be sent again."""
        return int(self.ask("nvmlDeviceGetPcieReplayCounter", gpu))

    def pcie_replay_rollovers(self, gpu: Handle) -> int:
        """Return how often a PCIe packet was sent again until the link was trained anew."""
        return self.field(gpu, _REPLAY_ROLLOVERS)

    def pcie_bytes(self, gpu: Handle) -> tuple[int, int]:
        """Return the bytes that the GPU has received and sent over PCIe since its driver loaded.

        nvml.h: the value may wrap, at a size that is not stated. While it fits into 32 bits it may have
        wrapped unseen, several times a second: UNKNOWN.
        """
        received, sent = self.fields(gpu, [(number, 0) for number in _PCIE_BYTES])
        for answer in (received, sent):
            if isinstance(answer, NotReadError):
                raise answer
        assert isinstance(received, int)
        assert isinstance(sent, int)
        if max(received, sent) < 1 << 32:
            raise NotReadError("UNKNOWN")
        return received, sent

    def pcie_mb_per_s(self, gpu: Handle, direction: str) -> float:
        """Return the throughput `in` to the GPU or `out` of it, over 20 ms, which the call takes."""
        return int(self.ask("nvmlDeviceGetPcieThroughput", gpu, _PCIE_UTIL[direction])) / 1000

    def common_ancestor(self, a: Handle, b: Handle) -> Hop:
        """Return how far two GPUs are apart on PCIe. `nvidia-smi topo -m`."""
        level = int(self.ask("nvmlDeviceGetTopologyCommonAncestor", a, b))
        try:
            return Hop.from_level(level)
        except ValueError as error:
            raise NotReadError(f"UNKNOWN_LEVEL_{level}") from error

    def p2p(self, a: Handle, b: Handle, what: str) -> str:
        """Return whether one GPU can `read` or `write` the other's memory, in NVML's words. `topo -p2p r`.

        pynvml's constant for reading is the tuple (0,), which ctypes refuses: hence the plain numbers.
        """
        code = int(self.ask("nvmlDeviceGetP2PStatus", a, b, {"read": 0, "write": 1}[what]))
        return P2P_STATUS.get(code, f"UNKNOWN_{code}")

    def nvlink_count(self, gpu: Handle) -> int:
        """Return the number of NVLinks that the card has, up or down."""
        return self.field(gpu, _LINK_COUNT)

    def nvlink_active(self, gpu: Handle, link: int) -> bool:
        """Return whether an NVLink is up. INVALID_ARGUMENT after the last link of the GPU."""
        return bool(self.ask("nvmlDeviceGetNvLinkState", gpu, link))

    def nvlink_version(self, gpu: Handle, link: int) -> int:
        """Return the NVLink generation."""
        code = int(self.ask("nvmlDeviceGetNvLinkVersion", gpu, link))
        if code not in NVLINK_GENERATIONS:
            raise NotReadError(f"UNKNOWN_VERSION_{code}")
        return NVLINK_GENERATIONS[code]

    def nvlink_remote_address(self, gpu: Handle, link: int) -> str:
        """Return the PCI address of what is at the other end."""
        return address_of(self.ask("nvmlDeviceGetNvLinkRemotePciInfo", gpu, link))

    def nvlink_remote_kind(self, gpu: Handle, link: int) -> str:
        """Return what is at the other end: gpu, switch or ibmnpu."""
        code = int(self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link))
        if code not in NVLINK_REMOTES:
            raise NotReadError("UNKNOWN")
        return NVLINK_REMOTES[code]

    def nvlink_errors(self, gpu: Handle, link: int, counter: str) -> int:
        """Return an error counter of an NVLink. A key of NVLINK_ERRORS."""
        return int(self.ask("nvmlDeviceGetNvLinkErrorCounter", gpu, link, NVLINK_ERRORS[counter]))

    def nvlink_fields(self, gpu: Handle, link: int, generation: int | None) -> dict[str, int | NotReadError]:
        """Return the field values of an NVLink, in one call: `speed` in MB/s and error counters.

        Newer GPUs have these counters nowhere else; `generation` (of NVLink) decides which there are, None
        asks for all.
        """
        counters: dict[str, int] = {}
        if generation is None or generation >= 3:
            counters |= NVLINK_DL_ERRORS
        if generation is None or generation >= 5:
            counters |= NVLINK_COUNT_ERRORS
        speeds = [(_SPEED, link), (_SPEED_OF_ALL, 0)]
        if link in _SPEED_OF_LINK:
            speeds.insert(1, (_SPEED_OF_LINK[link], 0))
        values = self.fields(gpu, speeds + [(field, link) for field in counters.values()])
        answers = values[: len(speeds)]
        speed = next((answer for answer in answers if isinstance(answer, int) and answer > 0), answers[0])
        if speed == 0:
            speed = NotReadError("UNKNOWN")  # a link that is not up
        return {"speed": speed} | dict(zip(counters, values[len(speeds) :], strict=True))
