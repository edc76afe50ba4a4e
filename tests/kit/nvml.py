"""A Python object that replaces `pynvml.nvmlLib`: it gets pynvml's own ctypes arguments and fills them."""

import contextlib
import ctypes
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pynvml

from tests.kit.nvml_answers import ABOUT_GPU, ABOUT_SYSTEM, TEXTS, WITH_SLOT, field_value, pci_info
from tests.kit.nvml_fill import (
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
    give,
    give_bits,
    plain_number,
    pointed_at,
)
from tests.kit.specs import GPU_IS_LOST, Scenario

_WRITE = re.compile(
    r"(Set|Clear|Reset|Modify|Remove|Discover|Create|Destroy|Freeze|Activate|Update)(?!.*Get)"
)
_HANDLES_FROM, _EVENTS_FROM = 0x1000, 0x9000
NOT_FOUND, TIMEOUT = 6, 10
XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
UNSIGNED_INT, UNSIGNED_LONG_LONG, SIGNED_INT = 1, 3, 5  # nvmlValueType_t


class FakeNvml:
    """A libnvidia-ml for one scenario. Attribute access is the symbol lookup, a call is the C call."""

    def __init__(self, scenario: Scenario, *, init_code: int | None = None) -> None:
        self.scenario = scenario
        self.init_code = scenario.init_code if init_code is None else init_code
        self.calls: Counter[tuple[str, int | None]] = Counter()
        self.writes: list[str] = []
        self.open = 0
        self._absent: set[str] = set()
        self._refused: dict[tuple[str, int | None], int] = {}
        self._calls_of_gpu: Counter[int] = Counter()
        self._lost_after: dict[int, int] = {}
        self._faults: list[Callable[[str, int | None], None]] = []
        self._clock_scripts: dict[tuple[int, int], list[int]] = {}
        self._symbols: dict[str, Callable[..., int]] = {}
        self._link_scripts = {
            index: list(gpu.gen_script) for index, gpu in enumerate(scenario.gpus) if gpu.gen_script
        }
        self._events: dict[int, set[int]] = {}  # event set: the GPUs that it listens to
        self._xids = list(scenario.xids)
        self.now: Callable[[], float] = time.monotonic
        self.sleep: Callable[[float], None] = time.sleep
        self._warm: set[int | None] = set()  # the GPUs that have a handle; None: they are counted
        self._began_s: float | None = None
        self._changes: list[tuple[float, Callable[[Scenario], Scenario]]] = []

    def at(self, seconds: float, change: Callable[[Scenario], Scenario]) -> None:
        """Change the machine `seconds` of `now` after the first call, by a value or by a fault.

        `fake.at(3, lambda box: broken(box, "thermal_slowdown@1"))`. Earlier changes apply first.
        """
        self._changes.append((seconds, change))
        self._changes.sort(key=lambda one: one[0])

    def refuse(self, call: str, code: int = NOT_SUPPORTED, gpu: int | None = None) -> None:
        """Let a call return a code, for one GPU or all.

        `call` may include its arguments: `...ClockInfo[2]`.
        """
        self._refused[call, gpu] = code

    def without(self, *symbols: str) -> None:
        """Omit symbols, as a driver older than them does."""
        self._absent.update(symbols)

    def replace(self, symbol: str, call: Callable[..., int]) -> None:
        """Let a symbol be another C function, with pynvml's own ctypes arguments."""
        self._symbols[symbol] = call

    def lose(self, gpu: int, after_calls: int = 0) -> None:
        """Let a GPU fall off the bus after it has answered this many calls."""
        self._lost_after[gpu] = after_calls

    def spoil(
        self, call: str, fault: Callable[[], None], gpu: int | None = None, after_calls: int = 0
    ) -> None:
        """Let a call `hang`, `crash` or be slow, for one GPU or all, after `after_calls` good answers."""
        good = [after_calls]

        def meet(name: str, index: int | None) -> None:
            if name == call and gpu in (None, index):
                good[0] -= 1
                if good[0] < 0:
                    fault()

        self._faults.append(meet)

    def script_clock(self, gpu: int, kind: int, values_mhz: list[int]) -> None:
        """Let a clock have the next value at each call; the last one stays."""
        self._clock_scripts[gpu, kind] = list(values_mhz)

    def raise_xid(self, gpu: int, code: int) -> None:
        """Report an Xid error: it is delivered to an event set for the GPU, or dropped if there is none."""
        self._xids.append((gpu, code))

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
        if name in ABOUT_GPU or name in WITH_SLOT:
            return lambda handle, *args: self._about_gpu(name, handle, args)
        if name in ABOUT_SYSTEM:
            return lambda output, *_: (
                self._code(name, None) or give(ABOUT_SYSTEM[name](self.scenario), [output])
            )
        if _WRITE.search(name):
            return lambda *_: self._write(name)
        raise AttributeError(name)

    def _advance(self) -> None:
        """Apply the changes whose time has come."""
        self._began_s = self.now() if self._began_s is None else self._began_s
        while self._changes and self.now() - self._began_s >= self._changes[0][0]:
            before, self.scenario = self.scenario, self._changes.pop(0)[1](self.scenario)
            self._xids += self.scenario.xids[len(before.xids) :]

    def _write(self, name: str) -> int:
        self.writes.append(name)
        return SUCCESS

    def _about_gpu(self, name: str, handle: Any, args: tuple[Any, ...]) -> int:
        index = _index(handle)
        numbers = [plain_number(arg) for arg in args]
        plain = [] if name in TEXTS else [number for number in numbers if number is not None]
        code = self._code(name, index, plain)
        if code:
            return code
        outputs = [arg for arg, number in zip(args, numbers, strict=True) if number is None]
        if name == "nvmlDeviceGetClockInfo":
            return give(self._clock(index, plain[0]), outputs)
        if name == "nvmlDeviceGetCurrPcieLinkGeneration" and index in self._link_scripts:
            return give(_next(self._link_scripts[index]), outputs)
        if name in WITH_SLOT:
            return give(WITH_SLOT[name](self.scenario.gpus[index].link, self.scenario.slot(index)), outputs)
        return give(ABOUT_GPU[name](self.scenario.gpus[index], *plain), outputs)

    def _clock(self, index: int, kind: int) -> int:
        script = self._clock_scripts.get((index, kind))
        return _next(script) if script else self.scenario.gpus[index].clocks[kind]

    def _code(self, name: str, index: int | None, plain: list[int] | tuple[int, ...] = ()) -> int:
        """Record a call and return the code that refuses it, or SUCCESS."""
        self._advance()
        full = f"{name}[{','.join(map(str, plain))}]" if plain else name
        self.calls[full, index] += 1
        for meet in self._faults:
            meet(name, index)
        codes: Mapping[str, int] = {}
        if index is not None:
            codes = self.scenario.gpus[index].refuses
            self._calls_of_gpu[index] += 1
            lost = self.scenario.gpus[index].lost
            gone = self._calls_of_gpu[index] > self._lost_after.get(index, 1 << 60)
            if gone or lost == "handle" or (lost == "calls" and name != "nvmlDeviceGetHandleByIndex_v2"):
                return GPU_IS_LOST
        for key in (full, name) if codes or self._refused else ():
            for about in (index, None):
                if (key, about) in self._refused:
                    return self._refused[key, about]
            if key in codes:
                return codes[key]
        return SUCCESS

    def _warm_up(self, gpu: int | None, takes_s: float) -> None:
        """Take the time of a first call, once per process, as a driver without persistence mode does."""
        if gpu not in self._warm:
            self._warm.add(gpu)
            self._take(takes_s)

    def _take(self, takes_s: float) -> None:
        if takes_s:
            self.sleep(takes_s)

    # Calls that are not about one GPU, or that return several things

    def _call_nvmlInitWithFlags(self, _: int) -> int:  # noqa: N802
        for meet in self._faults:
            meet("nvmlInitWithFlags", None)
        self._take(self.scenario.init_s)
        if not self.init_code:
            self.open += 1
        return self.init_code

    def _call_nvmlShutdown(self) -> int:  # noqa: N802
        self.open -= 1
        return SUCCESS

    def _call_nvmlErrorString(self, code: int) -> bytes:  # noqa: N802
        return f"code {code} in words".encode()

    def _call_nvmlSystemGetProcessName(self, pid: Any, text: Any, _: Any) -> int:  # noqa: N802
        names = {process.pid: process.name for gpu in self.scenario.gpus for process in gpu.processes}
        code = self._code("nvmlSystemGetProcessName", None)
        return code or give(names[pid.value].encode(), [text])

    def _call_nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        self._warm_up(None, self.scenario.count_s)
        return self._code("nvmlDeviceGetCount", None) or give(len(self.scenario.gpus), [count])

    def _call_nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:  # noqa: N802
        if index.value >= len(self.scenario.gpus):
            return INVALID_ARGUMENT
        self._warm_up(index.value, self.scenario.gpus[index.value].initialise_s)
        code = self._code("nvmlDeviceGetHandleByIndex_v2", index.value)
        if not code:
            ctypes.c_void_p.from_buffer(pointed_at(device)).value = _HANDLES_FROM + index.value
        return code

    def _call_nvmlDeviceGetMemoryAffinity(self, handle: Any, size: int, nodes: Any, _: Any) -> int:  # noqa: N802
        code = self._code("nvmlDeviceGetMemoryAffinity", _index(handle))
        node = self.scenario.gpus[_index(handle)].numa_node
        return code or give_bits([node] if node >= 0 else range(len(self.scenario.cpus)), nodes, size)

    def _call_nvmlDeviceGetCpuAffinity(self, handle: Any, size: int, cpus: Any) -> int:  # noqa: N802
        code = self._code("nvmlDeviceGetCpuAffinity", _index(handle), [size])
        node = max(self.scenario.gpus[_index(handle)].numa_node, 0)
        return code or give_bits(self.scenario.cpus[node], cpus, size)

    def _call_nvmlDeviceGetFieldValues(self, handle: Any, count: Any, values: Any) -> int:  # noqa: N802
        index = _index(handle)
        wanted = pointed_at(values)
        code = self._code("nvmlDeviceGetFieldValues", index, [wanted[0].fieldId, wanted[0].scopeId])
        if code:
            return code
        gpu = self.scenario.gpus[index]
        for place in range(count.value):
            value = wanted[place]
            name = f"field[{value.fieldId}]"
            reported = field_value(gpu, value.fieldId, value.scopeId, self.scenario.driver_version)
            own = self._refused.get((name, None), gpu.refuses.get(name))
            value.nvmlReturn = own if own is not None else NOT_SUPPORTED if reported is None else SUCCESS
            long = reported is not None and reported >= 1 << 32
            signed = reported is not None and reported < 0
            value.valueType = UNSIGNED_LONG_LONG if long else SIGNED_INT if signed else UNSIGNED_INT
            value.value.ullVal = (reported or 0) % (1 << 64)
        return SUCCESS

    def _call_nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: int, info: Any) -> int:  # noqa: N802
        index = _index(handle)
        code = self._code("nvmlDeviceGetNvLinkRemotePciInfo_v2", index, [link])
        if code:
            return code
        remote = self.scenario.gpus[index].nvlinks[link].remote
        address = self.scenario.gpus[remote].address if isinstance(remote, int) else remote
        return NOT_SUPPORTED if address is None else give(pci_info(address), [info])

    def _call_nvmlDeviceGetTopologyCommonAncestor(self, first: Any, second: Any, level: Any) -> int:  # noqa: N802
        a, b = _index(first), _index(second)
        code = self._code("nvmlDeviceGetTopologyCommonAncestor", a) or self._lost(b)
        return code or give(self.scenario.level(a, b), [level])

    def _call_nvmlDeviceGetP2PStatus(self, first: Any, second: Any, kind: int, status: Any) -> int:  # noqa: N802
        a, b = _index(first), _index(second)
        code = self._code("nvmlDeviceGetP2PStatus", a, [kind]) or self._lost(b)
        return code or give(self.scenario.p2p.get((min(a, b), max(a, b)), 0), [status])

    def _call_nvmlDeviceGetSramEccErrorStatus(self, handle: Any, status: Any) -> int:  # noqa: N802
        index = _index(handle)
        code = self._code("nvmlDeviceGetSramEccErrorStatus", index)
        return code or give(self.scenario.gpus[index].sram_errors, [status])

    def _call_nvmlDeviceGetGpuFabricInfoV(self, handle: Any, info: Any) -> int:  # noqa: N802
        """Fill the struct in the caller's version, as far as the driver has it."""
        index, version = _index(handle), pointed_at(info).version >> 24
        code = self._code("nvmlDeviceGetGpuFabricInfoV", index, [version])
        return code or self._fabric(index, info)

    def _call_nvmlDeviceGetGpuFabricInfo(self, handle: Any, info: Any) -> int:  # noqa: N802
        index = _index(handle)
        return self._code("nvmlDeviceGetGpuFabricInfo", index) or self._fabric(index, info)

    def _fabric(self, index: int, info: Any) -> int:
        reported = self.scenario.gpus[index].fabric
        has = {name for name, _ in pointed_at(info)._fields_}
        return give(reported and {name: value for name, value in reported.items() if name in has}, [info])

    def _call_nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, place: Any, device: Any) -> int:  # noqa: N802
        index = _index(handle)
        code = self._code("nvmlDeviceGetMigDeviceHandleByIndex", index, [place.value])
        if code or place.value not in self.scenario.gpus[index].mig_instances:
            return code or NOT_FOUND
        return SUCCESS

    # Events

    def _call_nvmlEventSetCreate(self, events: Any) -> int:  # noqa: N802
        code = self._code("nvmlEventSetCreate", None)
        if not code:
            number = _EVENTS_FROM + len(self._events)
            ctypes.c_void_p.from_buffer(pointed_at(events)).value = number
            self._events[number] = set()
        return code

    def _call_nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, events: Any) -> int:  # noqa: N802
        index = _index(handle)
        code = self._code("nvmlDeviceRegisterEvents", index, [kinds.value])
        if not code:
            self._events[_number(events)].add(index)
        return code

    def _call_nvmlEventSetWait_v2(self, events: Any, event: Any, _: Any) -> int:  # noqa: N802
        code = self._code("nvmlEventSetWait_v2", None)
        if code:
            return code
        while self._xids:
            gpu, xid = self._xids.pop(0)
            if gpu in self._events[_number(events)]:
                ctypes.c_void_p.from_buffer(pointed_at(event)).value = _HANDLES_FROM + gpu  # its first member
                pointed_at(event).eventType, pointed_at(event).eventData = XID_EVENT, xid
                return SUCCESS
        return TIMEOUT

    def _call_nvmlEventSetFree(self, events: Any) -> int:  # noqa: N802
        del self._events[_number(events)]
        return self._code("nvmlEventSetFree", None)

    def _lost(self, index: int) -> int:
        gone = self._calls_of_gpu[index] > self._lost_after.get(index, 1 << 60)
        return GPU_IS_LOST if gone or self.scenario.gpus[index].lost else SUCCESS


def hang() -> None:
    """Never return: a fault for `spoil`."""
    time.sleep(3600)


def crash() -> None:
    """End the process: a fault for `spoil`."""
    os.kill(os.getpid(), signal.SIGSEGV)


@contextlib.contextmanager
def installed(fake: FakeNvml) -> Iterator[FakeNvml]:
    """Replace libnvidia-ml by the double for a `with` block, and restore it afterwards.

    pynvml caches looked-up functions, and the cache would outlive the double: it is emptied both times.
    """
    before = pynvml.nvmlLib, pynvml._nvmlLib_refcount
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib, pynvml._nvmlLib_refcount = fake, 0
    try:
        yield fake
    finally:
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlLib, pynvml._nvmlLib_refcount = before


def _next(script: list[int]) -> int:
    return script.pop(0) if len(script) > 1 else script[0]


def _index(handle: Any) -> int:
    return _number(handle) - _HANDLES_FROM


def _number(pointer: Any) -> int:
    return ctypes.c_void_p.from_buffer(pointer).value or 0
