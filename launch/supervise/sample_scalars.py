"""Samples of the GPUs as TensorBoard scalars, in the folder of `--tensorboard`."""

import os
import platform
import re
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gputopo.launch.data import masked_crc
from gputopo.runs import batch_sizes
from gputopo.values.run.events import Device, Event, GpuSample, RunStarted, Sample, Step

EVERY_S = 5.0  # between two points of a GPU: a day takes 4 MB per GPU; not measured
# Tags, with the fields of a sample.
TAGS = {
    "gpu/core_clock_mhz": "graphics_mhz",
    "gpu/memory_clock_mhz": "memory_mhz",
    "gpu/temperature_c": "temperature_c",
    "gpu/power_w": "power_w",
    "gpu/utilization_percent": "gpu_utilization_percent",
}
IMAGES_PER_SEC = "images_per_sec"  # also the tag of the worker's scalars
_Place = tuple[int, int]  # rank of a host, and index of a GPU there
_IN_A_PATH = re.compile(r"[^\w.-]+")
_FIXED64, _BYTES, _FIXED32 = 1, 2, 5  # wire types of protocol buffers


class SampleScalars:
    """Writes a TensorBoard run for each GPU, `gpu_0` or `n2_gpu_0`, in the folder of --tensorboard.

    The x-axis is the number of trained steps. A point has the latest value of each field, and the device's
    own speed in the last step. If a file cannot be written, `on_problem` reports it once, and no more writes
    are tried.
    """

    def __init__(self, on_problem: Callable[[str], None]) -> None:
        self._on_problem = on_problem
        self._folder: Path | None = None
        self._towers: dict[_Place, tuple[int, int]] = {}  # tower and its batch
        self._names: dict[_Place, str] = {}  # of folders, if there are several hosts
        self._files: dict[_Place, int] = {}
        self._gpus: dict[_Place, GpuSample] = {}  # the latest value of each field
        self._step: Step | None = None
        self._next_s = 0.0

    def event(self, event: Event) -> None:
        """Add the next event of the run."""
        match event:
            case RunStarted() if event.backend == "gpu":
                lifecycle = event.spec.get("lifecycle")
                folder = lifecycle.get("tensorboard") if isinstance(lifecycle, dict) else None
                self._folder = Path(folder) if isinstance(folder, str) else None
                self._towers = _towers(event.devices, batch_sizes(event))
                self._names = {
                    (one.rank, one.gpu): _IN_A_PATH.sub("_", one.short_name.lower())
                    for one in event.devices
                    if one.gpu is not None
                }
            case Step():
                self._step = event
            case Sample() if self._folder is not None:
                for one in event.gpus:
                    place = event.rank, one.gpu
                    self._gpus[place] = one.with_earlier(self._gpus.get(place))
                # If the clock was set back, points must still be written.
                due = event.time_s >= self._next_s or event.time_s < self._next_s - EVERY_S
                if due and self._step is not None:
                    self._next_s = event.time_s + EVERY_S
                    self._write_points(self._folder, event.time_s, self._step)

    def close(self) -> None:
        """Close the files."""
        for handle in self._files.values():
            os.close(handle)
        self._files.clear()
        self._folder = None

    def _write_points(self, folder: Path, time_s: float, step: Step) -> None:
        busy_s = {mark.tower: mark.weights_s + mark.compute_s for mark in step.marks}
        try:
            for place, latest in self._gpus.items():
                known = {tag: getattr(latest, field) for tag, field in TAGS.items()}
                points = {tag: float(value) for tag, value in known.items() if value is not None}
                tower, batch = self._towers.get(place, (-1, 0))
                if batch and busy_s.get(tower, 0.0) > 0:
                    points[IMAGES_PER_SEC] = batch / busy_s[tower]
                if points:
                    os.write(self._file(folder, place), event_record(time_s, step.global_step or 0, points))
        except OSError as error:
            self.close()
            self._on_problem(f"cannot write the samples for TensorBoard in {folder}: {error.strerror}")

    def _file(self, folder: Path, place: _Place) -> int:
        if place not in self._files:
            path = folder / self._names.get(place, f"gpu_{place[1]}")
            path.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{time.time():.0f}.{platform.node()}.{os.getpid()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._files[place] = os.open(path / name, flags, 0o666)
            began = _field(1, _FIXED64, struct.pack("<d", time.time()))
            os.write(self._files[place], _record(began + _field(3, _BYTES, b"brain.Event:2")))
        return self._files[place]


def _towers(devices: Sequence[Device], batches: Sequence[int]) -> dict[_Place, tuple[int, int]]:
    return {
        (one.rank, one.gpu): (one.tower, batch)
        for one, batch in zip(devices, batches, strict=False)
        if one.gpu is not None
    }


def event_record(time_s: float, step: int, points: Mapping[str, float]) -> bytes:
    """Return the record with one point for each tag."""
    values = b"".join(
        _field(1, _BYTES, _field(1, _BYTES, tag.encode()) + _field(2, _FIXED32, struct.pack("<f", value)))
        for tag, value in points.items()
    )
    # Field 2, the step, has wire type 0 (varint).
    number = b"\x10" + _varint(step)
    return _record(_field(1, _FIXED64, struct.pack("<d", time_s)) + number + _field(5, _BYTES, values))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def _field(number: int, wire_type: int, value: bytes) -> bytes:
    length = _varint(len(value)) if wire_type == _BYTES else b""
    return _varint(number << 3 | wire_type) + length + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
