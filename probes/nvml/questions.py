"""The questions to NVML about a GPU: a table of facts that need one call, and a function for each other fact.

The table lists pynvml's functions. Every question raises NotReadError if there is no answer. Errors in
drivers are worked around here.
"""

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from gputopo.probes.nvml.door import (
    Handle,
    NotReadError,
    Nvml,
    address_of,
    bits,
    first,
    signed,
    the_number,
    word,
)
from gputopo.probes.nvml.words import (
    ARCHITECTURES,
    BRANDS,
    CLOCKS,
    COMPUTE_MODES,
    FABRIC_HEALTH,
    FABRIC_STATES,
    FABRIC_SUMMARIES,
    MARGINS,
    MEMORY_LOCATIONS,
    NVLINK_COUNT_ERRORS,
    NVLINK_DL_ERRORS,
    NVLINK_ERRORS,
    NVLINK_GENERATIONS,
    NVLINK_REMOTES,
    P2P_STATUS,
    PROCESS_FUNCTIONS,
    RECOVERY_ACTIONS,
    SLOWDOWNS,
    SRAM_COUNTS,
    THRESHOLDS,
    VIOLATIONS,
    VIRTUALIZATIONS,
)
from gputopo.reference import decode_clock_events
from gputopo.topology import program_name
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Hop

_MIB = 1024 * 1024
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2: sizeof(nvmlMemory_v2_t) | 2 << 24
_NOT_AVAILABLE = 0xFFFFFFFF  # NVML_VALUE_NOT_AVAILABLE as an unsigned int
_MAX_INSTANCES = 64  # GPUs have up to 7 or 8; a larger count is garbage
_FIELD = "nvmlDeviceGetFieldValues"  # with one NVML_FI_* number: the fact is the value of that field
_KINDS = {"corrected": 0, "uncorrected": 1}  # nvmlMemoryErrorType_t
_COUNTERS = {"volatile": 0, "aggregate": 1}  # nvmlEccCounterType_t
_BANKS = ("max", "high", "partial", "low", "none")
# In the order of the numbers of nvmlFabricState_t; 0 is NOT_SUPPORTED.
_ALL_LINKS = 0xFFFFFFFF
MAX_NVLINKS = 36  # twice NVML_NVLINK_MAX_LINKS: more is garbage
_FABRIC_NONE, _FABRIC_COMPLETED = 0, 3


class FactQuestion(NamedTuple):
    """One call that gives facts of a GPU, by their paths in `Gpu`."""

    facts: tuple[str, ...]
    calls: tuple[tuple[Any, ...], ...]  # function and arguments after the handle; the first answer is used
    convert: Callable[[Any], Any]  # returns the fact, or a tuple of the facts, for the answer

    def ask(self, nvml: Nvml, gpu: Handle) -> dict[str, Any]:
        """Return the facts by path. Raises NotReadError."""
        answer = self.convert(first(*(_calling(nvml, gpu, *call) for call in self.calls)))
        return dict(zip(self.facts, answer if len(self.facts) > 1 else (answer,), strict=True))


def _calling(nvml: Nvml, gpu: Handle, function: str, *args: Any) -> Callable[[], Any]:
    if function == _FIELD:
        return lambda: nvml.field(gpu, *args)
    return lambda: nvml.ask(function, gpu, *args)


def _text(answer: str | bytes) -> str:
    """Return a text. pynvml returns bytes for the GSP firmware, unlike for other texts."""
    return answer.decode("ascii", "replace") if isinstance(answer, bytes) else str(answer)


def _named(table: Mapping[int, str], unknown: str = "") -> Callable[[Any], str]:
    """Return a function for NVML's number in words. Other numbers get `unknown` and the number, or raise."""
    return lambda code: table.get(int(code), f"{unknown}{code}") if unknown else word(table, int(code))


def _device_id(info: Any) -> str:
    """Return the chip's number, "2204". NVML packs device and vendor into one; in some VMs it is 0."""
    number = int(info.pciDeviceId) >> 16
    if not number:
        raise NotReadError("UNKNOWN")
    return f"{number:04x}"


def _subsystem_id(info: Any) -> str:
    if not info.pciSubSystemId:
        raise NotReadError("UNKNOWN")
    return f"{info.pciSubSystemId:08x}"


def _one_node(mask: Any) -> int:
    nodes = bits(mask)
    if len(nodes) != 1:
        raise NotReadError("SEVERAL_NODES" if nodes else "NO_NODE")
    return nodes[0]


def _cpus(mask: Any) -> str:
    if not (cpus := bits(mask)):
        raise NotReadError("NO_CPUS")
    return index_ranges(cpus)


def _pstate(number: int) -> str:
    if number > 15:  # NVML_PSTATE_UNKNOWN is 32
        raise NotReadError("UNKNOWN")
    return f"P{number}"


def _link(number: int) -> int:
    if number in (0, _NOT_AVAILABLE):  # in some VMs the driver answers 0
        raise NotReadError("UNKNOWN")
    return number


def _thousandth(number: int) -> float:
    return int(number) / 1000


def _flags(answer: Any) -> tuple[bool, ...]:
    return tuple(map(bool, answer))


def _memory(*names: str) -> Callable[[Any], tuple[int, ...]]:
    return lambda info: tuple(getattr(info, name) // _MIB for name in names)


def _of(facts: str, *calls: str | tuple[Any, ...], to: Callable[[Any], Any] = int) -> FactQuestion:
    """Return a question for `fact`, or for `field:part part`."""
    field, _, parts = facts.partition(":")
    paths = tuple(f"{field}.{part}" for part in parts.split()) if parts else (field,)
    return FactQuestion(paths, tuple((call,) if isinstance(call, str) else call for call in calls), to)


def _clock(clock: str, number: int) -> Iterator[FactQuestion]:
    path = f"clocks_mhz.{clock}"
    yield _of(f"{path}.now", ("nvmlDeviceGetClockInfo", number))
    yield _of(f"{path}.max", ("nvmlDeviceGetMaxClockInfo", number))
    # The second name is for drivers that removed the first; 1: APP_CLOCK_TARGET.
    application = ("nvmlDeviceGetApplicationsClock", number)
    yield _of(f"{path}.application", application, ("nvmlDeviceGetClock", number, 1))
    yield _of(f"{path}.default_application", ("nvmlDeviceGetDefaultApplicationsClock", number))
    yield _of(f"{path}.boost", ("nvmlDeviceGetMaxCustomerBoostClock", number))


# The facts that identify a GPU come first.
QUESTIONS = (
    _of("uuid", "nvmlDeviceGetUUID", to=_text),
    _of("name", "nvmlDeviceGetName", to=_text),
    _of("brand", "nvmlDeviceGetBrand", to=_named(BRANDS)),
    _of("architecture", "nvmlDeviceGetArchitecture", to=_named(ARCHITECTURES)),
    _of("pci_address", "nvmlDeviceGetPciInfo", to=address_of),
    _of("pci_device_id", "nvmlDeviceGetPciInfo", to=_device_id),
    _of("pci_subsystem_id", "nvmlDeviceGetPciInfo", to=_subsystem_id),
    _of("board_part_number", "nvmlDeviceGetBoardPartNumber", to=_text),
    _of("vbios_version", "nvmlDeviceGetVbiosVersion", to=_text),
    _of("inforom_version", "nvmlDeviceGetInforomImageVersion", to=_text),
    _of("gsp_firmware_version", "nvmlDeviceGetGspFirmwareVersion", to=_text),
    # The single bit of the memory affinity (scope 0: node; 16 * 64 nodes). nvmlDeviceGetNumaNodeId is not
    # used: it returns the node of the GPU's own memory (Grace, POWER9) and is not supported anywhere else.
    _of("numa_node", ("nvmlDeviceGetMemoryAffinity", 16, 0), to=_one_node),
    # Room for 1024 CPUs first, then for 8192, the kernel's limit.
    _of("cpu_affinity", ("nvmlDeviceGetCpuAffinity", 16), ("nvmlDeviceGetCpuAffinity", 128), to=_cpus),
    *(question for clock in CLOCKS.items() for question in _clock(*clock)),
    _of("pstate", "nvmlDeviceGetPerformanceState", to=_pstate),
    # The new name, and the name before driver 535.
    _of(
        "throttle:mask reasons",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        to=lambda mask: (int(mask), decode_clock_events(int(mask))),
    ),
    _of("power_w.draw", "nvmlDeviceGetPowerUsage", to=_thousandth),
    _of("power_w.limit", "nvmlDeviceGetPowerManagementLimit", to=_thousandth),
    _of("power_w.default_limit", "nvmlDeviceGetPowerManagementDefaultLimit", to=_thousandth),
    _of("power_w.enforced_limit", "nvmlDeviceGetEnforcedPowerLimit", to=_thousandth),
    _of(
        "power_w:min max",
        "nvmlDeviceGetPowerManagementLimitConstraints",
        to=lambda limits: tuple(map(_thousandth, limits)),
    ),
    _of("temperature_c.gpu", ("nvmlDeviceGetTemperatureV", 0), ("nvmlDeviceGetTemperature", 0)),
    _of("temperature_c.memory", (_FIELD, 82)),  # NVML_FI_DEV_MEMORY_TEMP
    _of("temperature_c.margin", "nvmlDeviceGetMarginTemperature", to=signed),
    *(
        _of(f"temperature_c.{name}", ("nvmlDeviceGetTemperatureThreshold", number))
        for name, number in THRESHOLDS.items()
    ),
    *(_of(f"temperature_c.{name}", (_FIELD, number), to=signed) for name, number in MARGINS.items()),
    _of("pcie.gen_now", "nvmlDeviceGetCurrPcieLinkGeneration", to=_link),
    _of("pcie.gen_max", "nvmlDeviceGetMaxPcieLinkGeneration", to=_link),
    _of("pcie.gen_max_device", "nvmlDeviceGetGpuMaxPcieLinkGeneration", to=_link),
    _of("pcie.width_now", "nvmlDeviceGetCurrPcieLinkWidth", to=_link),
    _of("pcie.width_max", "nvmlDeviceGetMaxPcieLinkWidth", to=_link),
    _of("pcie.replay_counter", "nvmlDeviceGetPcieReplayCounter"),
    _of("pcie.replay_rollovers", (_FIELD, 95)),  # NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER
    # Version 2 keeps the reserved part out of `used`.
    _of(
        "memory_mib:total used free",
        ("nvmlDeviceGetMemoryInfo", _MEMORY_V2),
        "nvmlDeviceGetMemoryInfo",
        to=_memory("total", "used", "free"),
    ),
    _of(
        "bar1_mib:total used free",
        "nvmlDeviceGetBAR1MemoryInfo",
        to=_memory("bar1Total", "bar1Used", "bar1Free"),
    ),
    _of("fan_percent", "nvmlDeviceGetFanSpeed"),  # the intended speed; over 100 on GPUs that allow it
    _of("display_active", "nvmlDeviceGetDisplayActive", to=bool),
    _of("virtualization", "nvmlDeviceGetVirtualizationMode", to=_named(VIRTUALIZATIONS)),
    _of(
        "utilization_percent:gpu memory",
        "nvmlDeviceGetUtilizationRates",
        to=lambda info: (int(info.gpu), int(info.memory)),
    ),
    _of("ecc:mode mode_pending", "nvmlDeviceGetEccMode", to=_flags),
    *(
        _of(f"ecc.{kind}_{since}", ("nvmlDeviceGetTotalEccErrors", number, counter))
        for kind, number in _KINDS.items()
        for since, counter in _COUNTERS.items()
    ),
    # Blackwell and later
    _of("ecc:channel_repair_pending tpc_repair_pending", "nvmlDeviceGetRepairStatus", to=_flags),
    # Driver 590 and later
    _of("ecc.unrepairable_memory", "nvmlDeviceGetUnrepairableMemoryFlag_v1", to=bool),
    _of(
        "remapped_rows:correctable uncorrectable pending failure",
        "nvmlDeviceGetRemappedRows",
        to=lambda row: (row[0], row[1], bool(row[2]), bool(row[3])),
    ),
    _of(
        f"remapped_rows.banks:{' '.join(_BANKS)}",
        "nvmlDeviceGetRowRemapperHistogram",
        to=lambda rows: tuple(int(getattr(rows, name)) for name in _BANKS),
    ),
    _of("retired_pages.single_bit", ("nvmlDeviceGetRetiredPages", 0), to=len),
    _of("retired_pages.double_bit", ("nvmlDeviceGetRetiredPages", 1), to=len),
    _of("retired_pages.pending", "nvmlDeviceGetRetiredPagesPendingStatus", to=bool),
    _of("c2c_mode", "nvmlDeviceGetC2cModeInfoV", to=lambda info: bool(info.isC2cEnabled)),
    _of("compute_mode", "nvmlDeviceGetComputeMode", to=_named(COMPUTE_MODES, "unknown_")),
    _of("persistence_mode", "nvmlDeviceGetPersistenceMode", to=bool),
    # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, since driver 570
    _of("recovery_action", (_FIELD, 230), to=_named(RECOVERY_ACTIONS, "action ")),
)
_BY_FACT = {fact: question for question in QUESTIONS for fact in question.facts}


def facts_with(nvml: Nvml, gpu: Handle, path: str) -> dict[str, Any]:
    """Return a fact of a GPU by its path, and the other facts from the same call."""
    return _BY_FACT[path].ask(nvml, gpu)


def fact(nvml: Nvml, gpu: Handle, path: str) -> Any:
    """Return one fact of a GPU by its path in `Gpu`."""
    return facts_with(nvml, gpu, path)[path]


def cuda_version(nvml: Nvml) -> str:
    """Return the newest CUDA version that the driver runs, "12.4"."""
    name = "nvmlSystemGetCudaDriverVersion"
    number = first(lambda: nvml.ask(f"{name}_v2"), lambda: nvml.ask(name))
    return f"{number // 1000}.{number % 1000 // 10}"


def violation_ns(nvml: Nvml, gpu: Handle, policy: str) -> int:
    """Return how long a policy has throttled the clocks since the driver loaded. A key of VIOLATIONS."""
    return int(nvml.ask("nvmlDeviceGetViolationStatus", gpu, VIOLATIONS[policy]).violationTime)


def slowdown_ns(nvml: Nvml, gpu: Handle, nvml_version: str | None, cause: str) -> int:
    """Return how long the hardware has halved the clocks since the driver loaded. A key of SLOWDOWNS.

    `nvml_version`: `13.580.82.07`. Raises NotReadError if the field number for that version is not known.
    """
    return nvml.field(gpu, _slowdown_field(nvml_version, cause))


def _slowdown_field(nvml_version: str | None, cause: str) -> int:
    """Return the field's number. The numbers between driver 580.65 and 580.82 were never published."""
    match = re.match(r"\d+\.(\d+)\.(\d+)", nvml_version or "")
    if match is None:
        raise NotReadError("FIELD_NUMBER_UNKNOWN")
    driver = int(match[1]), int(match[2])
    if driver < (575, 51):
        raise NotReadError("FUNCTION_NOT_FOUND")
    if (580, 65) < driver < (580, 82):
        raise NotReadError("FIELD_NUMBER_UNKNOWN")
    return SLOWDOWNS[cause][driver >= (580, 82)]


def mig_modes(nvml: Nvml, gpu: Handle) -> tuple[bool, bool]:
    """Return whether the GPU is split into instances now and after a reset."""
    now, pending = nvml.ask("nvmlDeviceGetMigMode", gpu)
    return bool(now), bool(pending)


def mig_instances(nvml: Nvml, gpu: Handle) -> int:
    """Return the number of instances of a split GPU. The indices have gaps, which are NOT_FOUND."""
    count = 0
    for place in range(min(int(nvml.ask("nvmlDeviceGetMaxMigDeviceCount", gpu)), _MAX_INSTANCES)):
        try:
            nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, place)
        except NotReadError as error:
            if error.reason != "NOT_FOUND":
                raise
        else:
            count += 1
    return count


def ecc_errors_at(nvml: Nvml, gpu: Handle, location: str, kind: str, since: str) -> int:
    """Return the errors of one place in the chip or its memory. A key of MEMORY_LOCATIONS."""
    numbers = _KINDS[kind], _COUNTERS[since], MEMORY_LOCATIONS[location]
    return int(nvml.ask("nvmlDeviceGetMemoryErrorCounter", gpu, *numbers))


def sram_errors(nvml: Nvml, gpu: Handle) -> dict[str, int]:
    """Return the errors of the chip's own memories, by the names in SRAM_COUNTS (driver 535 and later)."""
    status = nvml.filled("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t", gpu)
    return {name: int(getattr(status, field)) for name, field in SRAM_COUNTS.items()}


def processes(nvml: Nvml, gpu: Handle, kind: str) -> tuple[tuple[int, int | None], ...]:
    """Return each process's pid and memory in MiB (None if unknown). `kind`: a key of PROCESS_FUNCTIONS."""
    name = PROCESS_FUNCTIONS[kind]
    listed = first(lambda: nvml.ask(f"{name}_v3", gpu), lambda: nvml.ask(f"{name}_v2", gpu))
    return tuple(
        (int(process.pid), None if process.usedGpuMemory is None else process.usedGpuMemory // _MIB)
        for process in listed
    )


def process_name(nvml: Nvml, pid: int) -> str | None:
    """Return a process's program without folders and arguments, which are private. None: it has ended."""
    try:
        return program_name(str(nvml.ask("nvmlSystemGetProcessName", pid)))
    except NotReadError:
        return None


# Links


def pcie_bytes(nvml: Nvml, gpu: Handle) -> tuple[int, int]:
    """Return the bytes that the GPU has received and sent over PCIe since its driver loaded.

    nvml.h says that the value may wrap, but not at which size. A value that fits in 32 bits may have wrapped
    unnoticed, several times a second: UNKNOWN.
    """
    # NVML_FI_DEV_PCIE_COUNT_RX_BYTES, _TX_BYTES
    counts = [the_number(answer) for answer in nvml.fields(gpu, [(198, 0), (197, 0)])]
    if max(counts) < 1 << 32:
        raise NotReadError("UNKNOWN")
    return counts[0], counts[1]


def nvlink_bytes(nvml: Nvml, gpu: Handle) -> tuple[int, int]:
    """Return the bytes of data that all NVLinks have received and sent. `nvidia-smi nvlink -gt d`."""
    # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _TX, in KiB; this scope is the sum of all links.
    received, sent = nvml.fields(gpu, [(139, _ALL_LINKS), (138, _ALL_LINKS)])
    return 1024 * the_number(received), 1024 * the_number(sent)


def nvlink_5_bytes(nvml: Nvml, gpu: Handle) -> tuple[int, int]:
    """Return the bytes that all NVLinks that answer have received and sent. NVLink 5 counts by link."""
    links = range(min(nvlink_count(nvml, gpu), MAX_NVLINKS))
    counts = []
    for field in (204, 202) if links else ():  # NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, _XMIT_BYTES
        answers = nvml.fields(gpu, [(field, link) for link in links])
        counts.append([answer for answer in answers if isinstance(answer, int)] or [the_number(answers[0])])
    if not counts:
        raise NotReadError("NOT_SUPPORTED")
    return sum(counts[0]), sum(counts[1])


def pcie_mb_per_s(nvml: Nvml, gpu: Handle, direction: str) -> float:
    """Return the throughput into the GPU (`in`) or out of it (`out`) over 20 ms, the time of the call."""
    counter = {"out": 0, "in": 1}[direction]  # nvmlPcieUtilCounter_t: TX, RX, as the GPU sees it
    return _thousandth(nvml.ask("nvmlDeviceGetPcieThroughput", gpu, counter))


def common_ancestor(nvml: Nvml, a: Handle, b: Handle) -> Hop:
    """Return the PCIe hop between two GPUs. `nvidia-smi topo -m`."""
    level = int(nvml.ask("nvmlDeviceGetTopologyCommonAncestor", a, b))
    try:
        return Hop.from_level(level)
    except ValueError as error:
        raise NotReadError(f"UNKNOWN_LEVEL_{level}") from error


def p2p(nvml: Nvml, a: Handle, b: Handle, access: str) -> str:
    """Return whether one GPU can `read` or `write` the other's memory, in NVML's words. `topo -p2p r`.

    Uses plain numbers because pynvml's constant for reading is the tuple (0,), which ctypes rejects.
    """
    code = int(nvml.ask("nvmlDeviceGetP2PStatus", a, b, {"read": 0, "write": 1}[access]))
    return P2P_STATUS.get(code, f"UNKNOWN_{code}")


def nvlink_count(nvml: Nvml, gpu: Handle) -> int:
    """Return the number of NVLinks of the card, active or not."""
    return nvml.field(gpu, 91)  # NVML_FI_DEV_NVLINK_LINK_COUNT


def nvlink_version(nvml: Nvml, gpu: Handle, link: int) -> int:
    """Return the NVLink generation."""
    code = int(nvml.ask("nvmlDeviceGetNvLinkVersion", gpu, link))
    if code not in NVLINK_GENERATIONS:
        raise NotReadError(f"UNKNOWN_VERSION_{code}")
    return NVLINK_GENERATIONS[code]


def nvlink_remote_address(nvml: Nvml, gpu: Handle, link: int) -> str:
    """Return the PCI address of what is at the other end."""
    return address_of(nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", gpu, link))


def nvlink_remote_kind(nvml: Nvml, gpu: Handle, link: int) -> str:
    """Return what is at the other end: gpu, switch or ibmnpu."""
    code = int(nvml.ask("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link))
    if code not in NVLINK_REMOTES:
        raise NotReadError("UNKNOWN")
    return NVLINK_REMOTES[code]


def nvlink_errors(nvml: Nvml, gpu: Handle, link: int, counter: str) -> int:
    """Return an error counter of an NVLink. A key of NVLINK_ERRORS."""
    return int(nvml.ask("nvmlDeviceGetNvLinkErrorCounter", gpu, link, NVLINK_ERRORS[counter]))


def nvlink_fields(
    nvml: Nvml, gpu: Handle, link: int, generation: int | None
) -> dict[str, int | NotReadError]:
    """Return the field values of an NVLink, in one call: `speed` in MB/s and error counters.

    Newer GPUs have these counters nowhere else. The NVLink `generation` decides which counters exist; None
    asks for all.
    """
    counters: dict[str, int] = {}
    if generation is None or generation >= 3:
        counters |= NVLINK_DL_ERRORS
    if generation is None or generation >= 5:
        counters |= NVLINK_COUNT_ERRORS
    # The speed by link (newer GPUs), for links 0 to 5, for links 6 to 11, or the same for all links.
    speeds = [(164, link), *([(84 + link if link < 6 else 126 + link, 0)] if link < 12 else []), (90, 0)]
    values = nvml.fields(gpu, speeds + [(field, link) for field in counters.values()])
    answers = values[: len(speeds)]
    speed = next((answer for answer in answers if isinstance(answer, int) and answer > 0), answers[0])
    if speed == 0:
        speed = NotReadError("UNKNOWN")  # the link is not active
    return {"speed": speed} | dict(zip(counters, values[len(speeds) :], strict=True))


class _FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_t of nvml.h; in nvidia-ml-py before 13.615 its UUID has 80 bytes instead of 16."""

    _fields_ = (
        ("clusterUuid", ctypes.c_char * 16),
        ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    )


def fabric_info(nvml: Nvml, gpu: Handle) -> Any:
    """Return the NVSwitch fabric's struct, the newest that the driver fills, or raise NOT_SUPPORTED."""
    structs: tuple[tuple[str, str | type[ctypes.Structure]], ...] = (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        ("nvmlDeviceGetGpuFabricInfo", _FabricInfo),  # drivers before 550
    )
    info = first(*(partial(nvml.filled, *struct, gpu) for struct in structs))
    if int(info.state) == _FABRIC_NONE:
        raise NotReadError("NOT_SUPPORTED")
    return info


def fabric_state(info: Any) -> str:
    """Return the state of joining the fabric: not started, in progress, completed."""
    return word(FABRIC_STATES, int(info.state))


def fabric_status(nvml: Nvml, info: Any) -> str:
    """Return how joining ended: "success", or NVML's error in words, such as "insufficient resources"."""
    if int(info.state) != _FABRIC_COMPLETED:
        raise NotReadError("NOT_COMPLETED")
    code = int(info.status)
    return nvml.reason(code).replace("_", " ").lower() if code else "success"


def fabric_clique(info: Any) -> int:
    """Return the clique of a GPU that has joined."""
    if int(info.state) != _FABRIC_COMPLETED:
        raise NotReadError("NOT_COMPLETED")
    return int(info.cliqueId)


def fabric_health(info: Any) -> dict[str, str]:
    """Return the health in nvidia-smi's words, as far as the driver reports it."""
    mask = int(getattr(info, "healthMask", 0))
    reported = {"summary": FABRIC_SUMMARIES.get(int(getattr(info, "healthSummary", 0)))}
    for name, (shift, width, words) in FABRIC_HEALTH.items():
        code = mask >> shift & width
        reported[name] = words.get(code, f"code {code}") if code else None
    health = {name: text for name, text in reported.items() if text is not None}
    if not health:
        raise NotReadError("NOT_SUPPORTED")
    return health
