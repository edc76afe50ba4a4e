"""`--on-anomaly`: a command that is started for each anomaly, in a thread of its own.

Nothing here can delay or end a run: what cannot be delivered is reported once.
"""

import contextlib
import os
import platform
import queue
import re
import shlex
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from gputopo.launch.data.tfrecords import masked_crc
from gputopo.launch.supervise.worker_process import OwnChildren
from gputopo.probes.processes import kill_group, tethered
from gputopo.runs.devices import batch_sizes
from gputopo.values.run.events import (
    Anomaly,
    AnomalyOver,
    Device,
    Event,
    GpuSample,
    RunStarted,
    Sample,
    Step,
)

COMMAND_S = 30.0  # that one delivery may take; not measured
LAST_S = 5.0  # that the end of the run waits for what is not delivered yet; not measured
MAX_WAITING = 100  # of anomalies; a run has a few; not measured


class Alarm:
    """Delivers anomalies in their order. `on_problem` gets one line, once, from the caller's thread.

    `ours`: where a command that it starts is noted, so that its end is left to it.
    """

    def __init__(
        self, command: str, on_problem: Callable[[str], None], ours: OwnChildren | None = None
    ) -> None:
        self._command = command
        self._ours = OwnChildren() if ours is None else ours
        self._on_problem: Callable[[str], None] | None = on_problem
        self._waiting: queue.Queue[Event | None] = queue.Queue(MAX_WAITING)
        self._problem: str | None = None
        self._running: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def event(self, event: Event) -> None:
        """Add the next event of the run."""
        if isinstance(event, Anomaly | AnomalyOver):
            if self._thread is None:
                self._thread = threading.Thread(target=self._deliver, name="alarm", daemon=True)
                self._thread.start()
            with contextlib.suppress(queue.Full):
                self._waiting.put_nowait(event)
        self._report()

    def close(self) -> None:
        """Wait a little for what is not delivered yet, and end what still runs."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._waiting.put_nowait(None)
            self._thread.join(LAST_S)
            if self._thread.is_alive():
                self._problem = self._problem or f"not delivered within {LAST_S:g} s of the end"
                self._kill()
            self._thread = None
        self._report()

    def _report(self) -> None:
        if self._problem is not None and self._on_problem is not None:
            name = shlex.split(self._command)[0]
            self._on_problem(f"--on-anomaly {name}: {self._problem}; the run continues")
            self._on_problem = None

    def _deliver(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                self._call(message_of(event), event)
            except (OSError, ValueError) as error:
                self._problem = self._problem or str(error)

    def _call(self, message: bytes, event: Event) -> None:
        with self._ours.starting:
            # Tethered, since the thread may block the signals that a program expects.
            self._running = process = subprocess.Popen(
                tethered(shlex.split(self._command)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **variables_of(event)},
            )
            self._ours.add(process.pid)
        try:
            process.communicate(message, timeout=COMMAND_S)
        except subprocess.TimeoutExpired as error:
            self._kill()
            process.wait()
            raise OSError(f"did not end within {COMMAND_S:g} s") from error
        if process.returncode:
            raise OSError(f"ended with exit code {process.returncode}")

    def _kill(self) -> None:
        process = self._running
        if process is not None and process.returncode is None:
            kill_group(process.pid)


def message_of(event: Event) -> bytes:
    """Return the event as in events.jsonl, with `host`, and `text`: a line for chats that show it."""
    host = platform.node()
    fields = msgspec.to_builtins(event)
    return msgspec.json.encode({**fields, "host": host, "text": f"gputopo on {host}: {fields['says']}"})


def variables_of(event: Event) -> Mapping[str, str]:
    """Return the event as environment variables; what is not known is left out."""
    if not isinstance(event, Anomaly | AnomalyOver):
        return {}
    values: dict[str, object] = {
        "EVENT": "anomaly" if isinstance(event, Anomaly) else "anomaly_over",
        "SAYS": event.says,
        "TOWER": event.tower,
        "GPU": event.gpu,
        "RANK": event.rank or None,
        "TIME": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event.time_s)),
    }
    if isinstance(event, Anomaly):
        found = event.causes.found if event.causes is not None else ()
        values |= {"PERCENT": f"{event.percent_under:.1f}", "CAUSE": found[0].id if found else None}
    return {f"GPUTOPO_{name}": str(value) for name, value in values.items() if value is not None}


EVERY_S = 5.0  # between two points of a GPU: a day of a GPU is 4 MB; not measured
# Tags, with the fields of a sample.
TAGS = {
    "gpu/core_clock_mhz": "graphics_mhz",
    "gpu/memory_clock_mhz": "memory_mhz",
    "gpu/temperature_c": "temperature_c",
    "gpu/power_w": "power_w",
    "gpu/utilization_percent": "gpu_utilization_percent",
}
IMAGES_PER_SEC = "images_per_sec"  # the tag of the worker's scalars, too
_Place = tuple[int, int]  # rank of a host, and index of its GPU there
_IN_A_PATH = re.compile(r"[^\w.-]+")
_FIXED64, _BYTES, _FIXED32 = 1, 2, 5  # wire types of protocol buffers


class SampleScalars:
    """Writes a TensorBoard run for each GPU, `gpu_0` or `n2_gpu_0`, in the folder of --tensorboard.

    Over the steps that the weights are trained for: the latest of each fact, and the device's own pace in the
    last step. What cannot be written is reported once by `on_problem`, and not tried again.
    """

    def __init__(self, on_problem: Callable[[str], None]) -> None:
        self._on_problem = on_problem
        self._folder: Path | None = None
        self._towers: dict[_Place, tuple[int, int]] = {}  # tower and its batch
        self._names: dict[_Place, str] = {}  # of folders, where there are several hosts
        self._files: dict[_Place, int] = {}
        self._gpus: dict[_Place, GpuSample] = {}  # the latest of each fact
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
                # A clock that was set back must not stop the points.
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
    """Return the record of one point of each of these tags."""
    values = b"".join(
        _field(1, _BYTES, _field(1, _BYTES, tag.encode()) + _field(2, _FIXED32, struct.pack("<f", value)))
        for tag, value in points.items()
    )
    # Field 2, the step, is of wire type 0: a number of its own.
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
