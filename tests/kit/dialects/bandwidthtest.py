"""A Machine as the CUDA samples' `bandwidthTest` prints it: one run per GPU.

Up to CUDA 10, sizes are in powers of two and rates in MB/s; later in powers of ten and GB/s.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gputopo.values.bandwidth import CopyRate, CopyRateKind
from gputopo.values.ends import End
from gputopo.values.machine import Gpu, Machine
from tests.kit.dialects import measured

SOURCE = "bandwidthTest"

Mode = Literal["quick", "range", "shmoo"]
MODES: tuple[Mode, ...] = ("quick", "range", "shmoo")


@dataclass(frozen=True, slots=True)
class Era:
    """The output of the program in some CUDA versions. `unit`: of the rates; `kilo`: bytes per kilobyte."""

    unit: str
    kilo: int

    def sizes(self, mode: Mode) -> list[int]:
        """Return the sizes that a mode copies; for the mode `range`, from 1 to 13 MB."""
        kilo, mega = self.kilo, self.kilo**2
        if mode == "quick":
            return [32 * mega]
        if mode == "range":
            return list(range(mega, 14 * mega, 4 * mega))
        found = [kilo]
        for limit, step in ((20, 1), (50, 2), (100, 10), (1000, 100)):
            found += range(found[-1] + step * kilo, limit * kilo + 1, step * kilo)
        for limit, step in ((16, 1), (32, 2), (64, 4)):
            found += range((found[-1] // mega + step) * mega, limit * mega + 1, step * mega)
        return found


ERAS = {"CUDA 9": Era("MB", 1024), "CUDA 12": Era("GB", 1000)}
_DIRECTIONS: dict[CopyRateKind, str] = {
    "h2d": "Host to Device",
    "d2h": "Device to Host",
    "d2d_local": "Device to Device",
}
_SHORT: dict[CopyRateKind, str] = {"h2d": "H2D", "d2h": "D2H", "d2d_local": "D2D"}


def measure(
    machine: Machine, era: Era, numbers: measured.Numbers, mode: Mode = "quick", *, pinned: bool = True
) -> Machine:
    """Return the machine with the samples of a run on each of its GPUs."""
    scale = 0.001 if era.unit == "MB" else 1.0
    samples = []
    for gpu in machine.gpus:
        place = f"gpu:{gpu.index}"
        for kind in _DIRECTIONS:
            source, destination = {"h2d": ("host", place), "d2h": (place, "host")}.get(kind, (place, place))
            samples += [
                CopyRate(
                    kind=kind,
                    source=End(source),
                    destination=End(destination),
                    bytes=size,
                    pinned=None if kind == "d2d_local" else pinned,
                    method="driver",
                    median_gb_per_s=float(f"{numbers() * scale:.12g}"),
                )
                for size in era.sizes(mode)
            ]
    return measured.with_samples(machine, samples, SOURCE)


def text(
    machine: Machine,
    era: Era,
    gpu: Gpu,
    mode: Mode = "quick",
    *,
    csv: bool = False,
    write_combined: bool = False,
    hidden: bool = False,
) -> str:
    """Return a run with --device=N.

    `hidden`: the program sees only this GPU, through CUDA_VISIBLE_DEVICES on its command line.
    """
    lines = [f"$ CUDA_VISIBLE_DEVICES={gpu.index} ./bandwidthTest"] if hidden else []
    lines += ["[CUDA Bandwidth Test] - Starting...", "Running on...", ""]
    lines += [f" Device {0 if hidden else gpu.index}: {gpu.name}", f" {mode.capitalize()} Mode", ""]
    assert machine.bandwidth is not None
    for kind in _DIRECTIONS:
        found = [one for one in machine.bandwidth.copies if one.kind == kind and one.gpus == (gpu.index,)]
        rates = {sample.bytes or 0: sample.median_gb_per_s or 0.0 for sample in found}
        if mode == "shmoo":
            lines.append("." * len(rates))
        pinned = any(sample.pinned for sample in found) or (kind == "d2d_local" and _is_pinned(machine))
        part = _csv if csv else _readable
        lines += part(kind, rates, era.unit, pinned, write_combined)
    return "\n".join([*lines, *_END])


_END = [
    "Result = PASS",
    "",
    "NOTE: The CUDA Samples are not meant for performance measurements. "
    "Results may vary when GPU Boost is enabled.",
    "",
]


def _is_pinned(machine: Machine) -> bool:
    samples = machine.bandwidth.copies if machine.bandwidth else ()
    return all(sample.pinned is not False for sample in samples)


def _printed(rate: float, unit: str) -> str:
    return f"{rate * 1000 if unit == 'MB' else rate:.1f}"


def _readable(
    kind: CopyRateKind, rates: Mapping[int, float], unit: str, pinned: bool, write_combined: bool
) -> list[str]:
    header = f"   Transfer Size (Bytes)\tBandwidth({unit}/s)"
    return [
        f" {_DIRECTIONS[kind]} Bandwidth, 1 Device(s)",
        f" {'PINNED' if pinned else 'PAGEABLE'} Memory Transfers",
        (" Write-Combined Memory Writes are Enabled" if write_combined else "") + header,  # on one line
        *(
            f"   {size}\t\t\t{chr(9) if size < 10000 else ''}{_printed(rate, unit)}"
            for size, rate in rates.items()
        ),
        "",
    ]


def _csv(
    kind: CopyRateKind, rates: Mapping[int, float], unit: str, pinned: bool, write_combined: bool
) -> Iterable[str]:
    memory = ("-Pinned-WriteCombined" if write_combined else "-Pinned") if pinned else "-Paged"
    name = f"bandwidthTest-{_SHORT[kind]}{'' if kind == 'd2d_local' else memory}"
    for size, rate in rates.items():
        took = f"Time = {size / rate / 1e9:.5f} s, Size = {size} bytes, NumDevsUsed = 1"
        yield f"{name}, Bandwidth = {_printed(rate, unit)} {unit}/s, {took}"


def quick(name: str, rates: Mapping[str, float], *, index: int = 0, unit: str = "MB") -> str:
    """Return a quick run of 32 MiB. `rates`: in its unit, by `Host to Device` and so on."""
    lines = ["[CUDA Bandwidth Test] - Starting...", "Running on...", "", f" Device {index}: {name}"]
    lines += [" Quick Mode", ""]
    scale = 0.001 if unit == "MB" else 1.0
    kinds = {direction: kind for kind, direction in _DIRECTIONS.items()}
    for direction, rate in rates.items():
        lines += _readable(kinds[direction], {33554432: rate * scale}, unit, True, False)
    return "\n".join([*lines, "Result = PASS", ""]) + "\n"
