"""A Python object in the place of `pynvml.nvmlLib`: pynvml's own ctypes arguments come in and are filled."""

import contextlib
import ctypes
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pynvml

from tests.kit.scenarios import GPU_IS_LOST, GpuSpec, LinkSpec, NvLinkSpec, Scenario

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, INSUFFICIENT_SIZE = 0, 2, 3, 7
_WRITE = re.compile(
    r"(Set|Clear|Reset|Modify|Remove|Discover|Create|Destroy|Freeze|Activate|Update)(?!.*Get)"
)
_HANDLES_FROM = 0x1000
_ALL_BITS_64 = 0xFFFFFFFFFFFFFFFF


class _Code(int):
    """A return code instead of a value."""


Answer = Any  # a number, bytes, a tuple of numbers, a dict of struct fields, a list of items, None or a _Code

# Symbols that answer about one GPU: the answer from its values and the call's plain arguments.
_ABOUT_GPU: dict[str, Callable[..., Answer]] = {
    "nvmlDeviceGetName": lambda gpu: gpu.name.encode(),
    "nvmlDeviceGetUUID": lambda gpu: gpu.uuid.encode(),
    "nvmlDeviceGetPciInfo_v3": lambda gpu: _pci_info(gpu.address),
    "nvmlDeviceGetClockInfo": lambda gpu, kind: gpu.clocks[kind],
    "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: gpu.max_clocks[kind],
    "nvmlDeviceGetApplicationsClock": lambda gpu, kind: gpu.application_clocks[kind],
    "nvmlDeviceGetClock": lambda gpu, kind, _: gpu.application_clocks[kind],
    "nvmlDeviceGetMaxCustomerBoostClock": lambda gpu, kind: gpu.boost_clocks[kind],
    "nvmlDeviceGetPerformanceState": lambda gpu: gpu.pstate,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu.throttle,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: gpu.throttle,
    "nvmlDeviceGetViolationStatus": lambda gpu, policy: (
        {"referenceTime": 1, "violationTime": gpu.violations[policy]} if policy in gpu.violations else None
    ),
    "nvmlDeviceGetPowerUsage": lambda gpu: gpu.power_mw,
    "nvmlDeviceGetPowerManagementLimit": lambda gpu: gpu.power_limit_mw,
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda gpu: gpu.power_default_mw,
    "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: gpu.power_enforced_mw,
    "nvmlDeviceGetPowerManagementLimitConstraints": lambda gpu: gpu.power_range_mw,
    "nvmlDeviceGetTemperatureV": lambda gpu: {"temperature": gpu.temperature},
    "nvmlDeviceGetTemperature": lambda gpu, _: gpu.temperature,
    "nvmlDeviceGetTemperatureThreshold": lambda gpu, kind: {0: gpu.shutdown, 1: gpu.slowdown}.get(kind),
    "nvmlDeviceGetMarginTemperature": lambda gpu: {"marginTemperature": gpu.margin},
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu: _generation(gpu.link.speed),
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": lambda gpu: _generation(gpu.link.max_speed),
    "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: gpu.link.width,
    "nvmlDeviceGetPcieReplayCounter": lambda gpu: gpu.replays,
    "nvmlDeviceGetMemoryInfo": lambda gpu: _memory(gpu),
    "nvmlDeviceGetMemoryInfo_v2": lambda gpu: _memory(gpu) | {"reserved": 0},
    "nvmlDeviceGetUtilizationRates": lambda gpu: {"gpu": gpu.utilization[0], "memory": gpu.utilization[1]},
    "nvmlDeviceGetEccMode": lambda gpu: gpu.ecc_mode,
    "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, since: gpu.ecc_errors[2 * kind + since],
    "nvmlDeviceGetRemappedRows": lambda gpu: gpu.remapped_rows,
    "nvmlDeviceGetRetiredPages": lambda gpu, cause: [0x1000 * n for n in range(gpu.retired_pages[cause])],
    "nvmlDeviceGetRetiredPagesPendingStatus": lambda gpu: gpu.retired_pending,
    "nvmlDeviceGetMigMode": lambda gpu: gpu.mig,
    "nvmlDeviceGetComputeMode": lambda gpu: gpu.compute_mode,
    "nvmlDeviceGetPersistenceMode": lambda gpu: gpu.persistence,
    "nvmlDeviceGetComputeRunningProcesses_v2": lambda gpu: _processes(gpu, "compute"),
    "nvmlDeviceGetComputeRunningProcesses_v3": lambda gpu: _processes(gpu, "compute"),
    "nvmlDeviceGetGraphicsRunningProcesses_v2": lambda gpu: _processes(gpu, "graphics"),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": lambda gpu: _processes(gpu, "graphics"),
    "nvmlDeviceGetMPSComputeRunningProcesses_v2": lambda gpu: _processes(gpu, "mps"),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": lambda gpu: _processes(gpu, "mps"),
    "nvmlDeviceGetNvLinkState": lambda gpu, link: _of_link(gpu, link, lambda one: one.remote is not None),
    "nvmlDeviceGetNvLinkVersion": lambda gpu, link: _of_link(gpu, link, lambda one: one.version),
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda gpu, link: _of_link(
        gpu, link, lambda one: 2 if isinstance(one.remote, str) else 0
    ),
    "nvmlDeviceGetNvLinkErrorCounter": lambda gpu, link, counter: _of_link(
        gpu, link, lambda one: one.errors.get(counter, 0)
    ),
}

# What card and slot can do together.
_WITH_SLOT: dict[str, Callable[[LinkSpec, LinkSpec], int]] = {
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda card, slot: _generation(min(card.max_speed, slot.max_speed)),
    "nvmlDeviceGetMaxPcieLinkWidth": lambda card, slot: min(card.max_width, slot.max_width),
}
_TEXTS = ("nvmlDeviceGetName", "nvmlDeviceGetUUID")  # their one plain argument is the size of the buffer


class FakeNvml:
    """A libnvidia-ml made of one scenario. Attribute access is the symbol lookup, a call is the C call."""

    def __init__(self, scenario: Scenario, *, init_code: int = SUCCESS) -> None:
        self.scenario = scenario
        self.init_code = init_code
        self.calls: Counter[tuple[str, int | None]] = Counter()
        self.writes: list[str] = []
        self.open = 0
        self._absent: set[str] = set()
        self._refused: dict[tuple[str, int | None], int] = {}
        self._calls_of_gpu: Counter[int] = Counter()
        self._lost_after: dict[int, int] = {}
        self._clock_scripts: dict[tuple[int, int], list[int]] = {}
        self._symbols: dict[str, Callable[..., int]] = {}

    def refuse(self, call: str, code: int = NOT_SUPPORTED, gpu: int | None = None) -> None:
        """Let a call return a code, for one GPU or all. `call` may name its arguments: `...ClockInfo[2]`."""
        self._refused[call, gpu] = code

    def without(self, *symbols: str) -> None:
        """Leave symbols out, as a driver older than them does."""
        self._absent.update(symbols)

    def lose(self, gpu: int, after_calls: int = 0) -> None:
        """Let a GPU fall off the bus once it has answered so many calls."""
        self._lost_after[gpu] = after_calls

    def script_clock(self, gpu: int, kind: int, values_mhz: list[int]) -> None:
        """Let a clock have another value at each call; the last one stays."""
        self._clock_scripts[gpu, kind] = list(values_mhz)

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("_") or name in self._absent:
            raise AttributeError(name)
        if name not in self._symbols:
            self._symbols[name] = self._symbol(name)
        return self._symbols[name]

    def _symbol(self, name: str) -> Callable[..., int]:
        own: Callable[..., int] | None = getattr(type(self), f"_call_{name}", None)
        if own is not None:
            return lambda *args: own(self, *args)
        if name in _ABOUT_GPU or name in _WITH_SLOT:
            return lambda handle, *args: self._about_gpu(name, handle, args)
        if _WRITE.search(name):
            return lambda *_: self._write(name)
        raise AttributeError(name)

    def _write(self, name: str) -> int:
        self.writes.append(name)
        return SUCCESS

    def _about_gpu(self, name: str, handle: Any, args: tuple[Any, ...]) -> int:
        index = _index(handle)
        plain = [] if name in _TEXTS else [number for number in map(_plain, args) if number is not None]
        code = self._code(name, index, plain)
        if code:
            return code
        outputs = [arg for arg in args if _plain(arg) is None]
        if name == "nvmlDeviceGetClockInfo":
            return _give(self._clock(index, plain[0]), outputs)
        if name in _WITH_SLOT:
            return _give(_WITH_SLOT[name](self.scenario.gpus[index].link, self.scenario.slot(index)), outputs)
        return _give(_ABOUT_GPU[name](self.scenario.gpus[index], *plain), outputs)

    def _clock(self, index: int, kind: int) -> int:
        script = self._clock_scripts.get((index, kind))
        if not script:
            return self.scenario.gpus[index].clocks[kind]
        return script.pop(0) if len(script) > 1 else script[0]

    def _code(self, name: str, index: int | None, plain: list[int] | tuple[int, ...] = ()) -> int:
        """Note a call and give the code that refuses it, or SUCCESS."""
        full = f"{name}[{','.join(map(str, plain))}]" if plain else name
        self.calls[full, index] += 1
        codes: Mapping[str, int] = {}
        if index is not None:
            codes = self.scenario.gpus[index].refuses
            self._calls_of_gpu[index] += 1
            lost = self.scenario.gpus[index].lost
            gone = self._calls_of_gpu[index] > self._lost_after.get(index, 1 << 60)
            if gone or lost == "handle" or (lost == "calls" and name != "nvmlDeviceGetHandleByIndex_v2"):
                return GPU_IS_LOST
        for key in (full, name):
            for about in (index, None):
                if (key, about) in self._refused:
                    return self._refused[key, about]
            if key in codes:
                return codes[key]
        return SUCCESS

    # Calls that are not about one GPU alone, or give more than one thing

    def _call_nvmlInitWithFlags(self, _: int) -> int:  # noqa: N802
        if not self.init_code:
            self.open += 1
        return self.init_code

    def _call_nvmlShutdown(self) -> int:  # noqa: N802
        self.open -= 1
        return SUCCESS

    def _call_nvmlErrorString(self, code: int) -> bytes:  # noqa: N802
        return f"code {code} in words".encode()

    def _call_nvmlSystemGetDriverVersion(self, text: Any, _: Any) -> int:  # noqa: N802
        return self._code("nvmlSystemGetDriverVersion", None) or _give(
            self.scenario.driver_version.encode(), [text]
        )

    def _call_nvmlSystemGetNVMLVersion(self, text: Any, _: Any) -> int:  # noqa: N802
        return self._code("nvmlSystemGetNVMLVersion", None) or _give(
            self.scenario.nvml_version.encode(), [text]
        )

    def _call_nvmlSystemGetCudaDriverVersion_v2(self, number: Any) -> int:  # noqa: N802
        return self._code("nvmlSystemGetCudaDriverVersion_v2", None) or _give(
            self.scenario.cuda_version, [number]
        )

    def _call_nvmlSystemGetCudaDriverVersion(self, number: Any) -> int:  # noqa: N802
        return self._code("nvmlSystemGetCudaDriverVersion", None) or _give(
            self.scenario.cuda_version, [number]
        )

    def _call_nvmlSystemGetProcessName(self, pid: Any, text: Any, _: Any) -> int:  # noqa: N802
        names = {process.pid: process.name for gpu in self.scenario.gpus for process in gpu.processes}
        code = self._code("nvmlSystemGetProcessName", None)
        return code or _give(names[pid.value].encode(), [text])

    def _call_nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        return self._code("nvmlDeviceGetCount", None) or _give(len(self.scenario.gpus), [count])

    def _call_nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:  # noqa: N802
        if index.value >= len(self.scenario.gpus):
            return INVALID_ARGUMENT
        code = self._code("nvmlDeviceGetHandleByIndex_v2", index.value)
        if not code:
            ctypes.c_void_p.from_buffer(device._obj).value = _HANDLES_FROM + index.value
        return code

    def _call_nvmlDeviceGetMemoryAffinity(self, handle: Any, size: int, nodes: Any, _: Any) -> int:  # noqa: N802
        code = self._code("nvmlDeviceGetMemoryAffinity", _index(handle))
        node = self.scenario.gpus[_index(handle)].numa_node
        return code or _give_bits([node] if node >= 0 else range(len(self.scenario.cpus)), nodes, size)

    def _call_nvmlDeviceGetCpuAffinity(self, handle: Any, size: int, cpus: Any) -> int:  # noqa: N802
        code = self._code("nvmlDeviceGetCpuAffinity", _index(handle), [size])
        node = max(self.scenario.gpus[_index(handle)].numa_node, 0)
        return code or _give_bits(self.scenario.cpus[node], cpus, size)

    def _call_nvmlDeviceGetFieldValues(self, handle: Any, count: Any, values: Any) -> int:  # noqa: N802
        index = _index(handle)
        code = self._code("nvmlDeviceGetFieldValues", index)
        if code:
            return code
        gpu = self.scenario.gpus[index]
        for place in range(count.value):
            value = values._obj[place]
            known = value.fieldId == pynvml.NVML_FI_DEV_MEMORY_TEMP
            own = self._refused.get(
                (f"field[{value.fieldId}]", None), gpu.refuses.get(f"field[{value.fieldId}]")
            )
            value.nvmlReturn = own if own is not None else SUCCESS if known else NOT_SUPPORTED
            value.value.uiVal = gpu.memory_temperature
        return SUCCESS

    def _call_nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: int, info: Any) -> int:  # noqa: N802
        index = _index(handle)
        code = self._code("nvmlDeviceGetNvLinkRemotePciInfo_v2", index, [link])
        if code:
            return code
        remote = self.scenario.gpus[index].nvlinks[link].remote
        address = self.scenario.gpus[remote].address if isinstance(remote, int) else remote
        return NOT_SUPPORTED if address is None else _give(_pci_info(address), [info])

    def _call_nvmlDeviceGetTopologyCommonAncestor(self, first: Any, second: Any, level: Any) -> int:  # noqa: N802
        a, b = _index(first), _index(second)
        code = self._code("nvmlDeviceGetTopologyCommonAncestor", a) or self._lost(b)
        return code or _give(self.scenario.level(a, b), [level])

    def _call_nvmlDeviceGetP2PStatus(self, first: Any, second: Any, kind: int, status: Any) -> int:  # noqa: N802
        a, b = _index(first), _index(second)
        code = self._code("nvmlDeviceGetP2PStatus", a, [kind]) or self._lost(b)
        return code or _give(self.scenario.p2p.get((min(a, b), max(a, b)), 0), [status])

    def _lost(self, index: int) -> int:
        gone = self._calls_of_gpu[index] > self._lost_after.get(index, 1 << 60)
        return GPU_IS_LOST if gone or self.scenario.gpus[index].lost else SUCCESS


@contextlib.contextmanager
def installed(fake: FakeNvml) -> Iterator[FakeNvml]:
    """Put the double in the place of libnvidia-ml for a `with` block, and put back what was there.

    pynvml keeps looked-up functions in a cache that would outlive the double: it is emptied both times.
    """
    before = pynvml.nvmlLib, pynvml._nvmlLib_refcount
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib, pynvml._nvmlLib_refcount = fake, 0
    try:
        yield fake
    finally:
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlLib, pynvml._nvmlLib_refcount = before


def _index(handle: Any) -> int:
    return (ctypes.cast(handle, ctypes.c_void_p).value or 0) - _HANDLES_FROM


def _plain(arg: Any) -> int | None:
    """Give an argument's number, or None for one that is filled: byref(...), an array, a null pointer."""
    if isinstance(arg, int):
        return arg
    value = getattr(arg, "value", None)
    return value if isinstance(value, int) else None


def _give(answer: Answer, outputs: list[Any]) -> int:
    """Write an answer through the call's output arguments and give the return code."""
    if answer is None:
        return NOT_SUPPORTED
    if isinstance(answer, _Code):
        return int(answer)
    if isinstance(answer, list):
        return _give_items(answer, *outputs)
    if isinstance(answer, bytes):
        outputs[0].value = answer
    elif isinstance(answer, dict):
        for name, value in answer.items():
            setattr(outputs[0]._obj, name, value)
    else:
        for output, value in zip(outputs, answer if isinstance(answer, tuple) else (answer,), strict=True):
            output._obj.value = value
    return SUCCESS


def _give_items(items: list[Any], count: Any, array: Any) -> int:
    """Fill an array whose room the caller states; without one, or with too little room, only the count."""
    room, count._obj.value = count._obj.value, len(items)
    if array is None or room < len(items):
        return INSUFFICIENT_SIZE if items else SUCCESS
    for place, item in enumerate(items):
        if isinstance(item, dict):
            for name, value in item.items():
                setattr(array[place], name, value)
        else:
            array[place] = item
    return SUCCESS


def _give_bits(numbers: Any, words: Any, size: int) -> int:
    if max(numbers, default=0) >= 64 * size:
        return INSUFFICIENT_SIZE
    for number in numbers:
        words._obj[number // 64] |= 1 << number % 64
    return SUCCESS


def _pci_info(address: str) -> dict[str, Any]:
    """Give an nvmlPciInfo_t as drivers fill it: the domain with eight digits, in upper case."""
    domain, bus, rest = address.split(":")
    device = rest.partition(".")[0]
    return {
        "busIdLegacy": f"{int(domain, 16) & 0xFFFF:04X}:{bus}:{rest}".upper().encode(),
        "busId": f"{int(domain, 16):08X}:{bus}:{rest}".upper().encode(),
        "domain": int(domain, 16),
        "bus": int(bus, 16),
        "device": int(device, 16),
    }


def _generation(speed: float) -> int:
    return {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}[speed]


def _memory(gpu: GpuSpec) -> dict[str, int]:
    total, used, free = gpu.memory_bytes
    return {"total": total, "used": used, "free": free}


def _processes(gpu: GpuSpec, kind: str) -> list[dict[str, int]]:
    return [
        {
            "pid": process.pid,
            "usedGpuMemory": _ALL_BITS_64 if process.used_bytes is None else process.used_bytes,
        }
        for process in gpu.processes
        if process.kind == kind
    ]


def _of_link(gpu: GpuSpec, link: int, give: Callable[[NvLinkSpec], int]) -> int | _Code:
    return int(give(gpu.nvlinks[link])) if link < len(gpu.nvlinks) else _Code(INVALID_ARGUMENT)
