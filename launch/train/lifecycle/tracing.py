"""Profiles of chosen steps: written for TensorBoard, and read for what each device did."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.spec.names import device_name
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.host_rpc import ask_host
from gputopo.launch.train.lifecycle.trace_reading import device_times
from gputopo.launch.train.op_errors import disk_reason
from gputopo.launch.train.stepper import Observer, StepOutcome
from gputopo.runs.devices import short_name_of
from gputopo.values.index_ranges import index_ranges
from gputopo.values.run.events import DeviceTimes, Event, Noticed, PhaseBegun, Step, Traced

_HOST_LEVEL = 2  # every op; level 1 leaves out most of them, level 3 is for those who look into TensorFlow


Emit = Callable[[Event], None]


def start_profile(folder: Path) -> None:
    """Begin a profile. Raises AttributeError, ImportError, OpError where this TensorFlow has no profiler."""
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=_HOST_LEVEL, python_tracer_level=0)
    tf.profiler.experimental.start(str(folder), options)


def stop_profile() -> None:
    """End it, and write it into the folder. Raises ImportError, OSError, OpError."""
    tf.profiler.experimental.stop()


def profile_files(folder: Path) -> list[Path]:
    """Return the files of profiles in a folder, as TensorBoard looks for them."""
    return sorted(folder.rglob("*.xplane.pb"))


class HostProfile:
    """The profile of a host that serves its devices to rank 0."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def begin(self) -> np.bool_:
        """Begin a profile. Raises what `start` raises."""
        self._folder = Path(tempfile.mkdtemp(prefix="gputopo-trace-"))
        try:
            start_profile(self._folder)
        except BaseException:
            self._remove()
            raise
        return np.bool_(True)

    def end(self) -> bytes:
        """End the profile and return it, an XSpace. Raises what `stop` raises, ValueError without a begin."""
        if self._folder is None:
            raise ValueError("no profile has begun")
        try:
            stop_profile()
            (file,) = profile_files(self._folder)
            return file.read_bytes()
        finally:
            self._remove()

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None


class Tracer(Observer):
    """Profiles the steps that the spec names, each sequence of them as one profile in a separate folder.

    Of several hosts whose devices this process trains on it is a profile of each: rank 0's own, and what the
    others' servers do, which is sent here and stands beside it.
    """

    def __init__(self, spec: RunSpec, emit: Emit) -> None:
        self._spec = spec
        self._emit = emit
        self._folder = Path(spec.lifecycle.trace or ".")
        self._wanted = set(spec.lifecycle.trace_steps)
        self._others = [rank for rank in spec.ranks if rank] if spec.rank is None else []
        self._lacks: dict[int, str] = {}  # of this profile, by rank: why it has no part of that host
        self._running: Path | None = None
        self._steps: list[Step] = []
        self._broken = False

    def before(self, number: int) -> None:
        """Start the profiler before the first of the steps."""
        if number not in self._wanted or self._running is not None or self._broken:
            return
        folder = self._folder / f"step-{number}"
        try:
            start_profile(folder)
        except (AttributeError, ImportError, tf.errors.OpError) as error:
            self._broken = True
            self._notice(f"No trace: this TensorFlow has no working profiler ({_first_line(error)}).")
            return
        self._running, self._lacks = folder, {}
        for rank in self._others:
            self._asked(rank, "trace", tf.bool)

    def after(self, step: Step, outcome: StepOutcome) -> None:
        """Stop the profiler after the last of the steps, and read what it wrote."""
        if self._running is None:
            return
        self._steps.append(step)
        self._wanted.discard(step.step)
        if step.step + 1 not in self._wanted:
            self._finish(self._running)

    def close(self) -> None:
        """Report requested steps that were never reached."""
        if self._running is not None:
            self._finish(self._running)
        if self._wanted and not self._broken:
            self._notice(f"Not traced, for the run did not come to it: {_named(self._wanted)}.")

    def _finish(self, folder: Path) -> None:
        self._emit(PhaseBegun(time_s=time.time(), phase="trace"))
        steps, self._steps, self._running = self._steps, [], None
        try:
            stop_profile()
            profiles = self._profiles(folder)
        except (ImportError, OSError, tf.errors.OpError) as error:
            self._notice(
                f"No trace of {_named(step.step for step in steps)}, for it cannot be written in {folder}: "
                f"{disk_reason(error)}. Free some space, or name another folder with --output."
            )
            return
        devices, remarks = self._read(profiles)
        self._emit(
            Traced(
                time_s=time.time(),
                path=str(folder),
                steps=tuple(step.step for step in steps),
                seconds=sum(step.seconds for step in steps),
                devices=devices,
                says=remarks,
            )
        )

    def _profiles(self, folder: Path) -> dict[int, list[Path]]:
        """Return the files of each host by its rank, those of others after they have come. Raises OSError."""
        found = {0: profile_files(folder)}
        beside = found[0][0].parent if found[0] else folder
        for rank in [one for one in self._others if one not in self._lacks]:
            content = self._asked(rank, "traced", tf.string)
            if content is not None:
                file = beside / f"rank-{rank}-{_plain(self._host(rank))}.xplane.pb"
                partial = file.with_suffix(".part")
                partial.write_bytes(content)
                found[rank] = [partial.replace(file)]
        return found

    def _asked(self, rank: int, question: str, dtype: Any) -> Any:
        """Return the answer of another host, None where it has none: then why is noted."""
        try:
            return ask_host(device_name("CPU", 0, rank), question, dtype=dtype)
        except tf.errors.OpError as error:
            self._lacks[rank] = _first_line(error).rstrip(".")
            return None

    def _host(self, rank: int) -> str:
        return next((one.host for one in self._spec.devices if one.rank == rank and one.host), f"rank {rank}")

    def _read(
        self, profiles: Mapping[int, Sequence[Path]]
    ) -> tuple[tuple[DeviceTimes, ...], tuple[str, ...]]:
        """Return what each device did, and remarks on it. `profiles`: of each host, by its rank."""
        found: list[DeviceTimes] = []
        try:
            for rank, files in profiles.items():
                own = [device for device in self._spec.devices if device.rank == rank]
                found += device_times(_planes(files), own)
        except (ImportError, OSError, ValueError) as error:
            return (), (f"The trace cannot be read: {_first_line(error)}",)
        devices = tuple(found)
        return devices, tuple(self._lacking(devices))

    def _lacking(self, devices: tuple[DeviceTimes, ...]) -> Iterator[str]:
        found, traced = {times.device for times in devices}, {0, *self._others} - set(self._lacks)
        own = [one for one in self._spec.devices if one.rank in traced]
        missing = [
            one.device if one.host is None else short_name_of(one) for one in own if one.device not in found
        ]
        if missing:
            why = (
                "TensorFlow was not allowed to use CUPTI, or has none (see worker.log)"
                if self._spec.backend == "gpu"
                else "no op in the scope of a tower was recorded"
            )
            yield f"The trace lacks {', '.join(sorted(missing))}: {why}."
        for rank, why in self._lacks.items():
            yield f"The trace lacks host {self._host(rank)}: {why}."
        if self._spec.rank is not None:
            yield "The trace has the devices of rank 0 only."

    def _notice(self, says: str) -> None:
        self._emit(Noticed(time_s=time.time(), says=says))


def _named(steps: Iterable[int]) -> str:
    """Name steps: `step 1`, `steps 3-5`."""
    numbers = set(steps)
    return f"step{'s' if len(numbers) > 1 else ''} {index_ranges(numbers)}"


def _plain(host: str) -> str:
    return "".join(one if one.isalnum() or one in ".-" else "_" for one in host)


def _planes(files: Sequence[Path]) -> list[Any]:
    from google.protobuf.message import DecodeError
    from tensorflow.tsl.profiler.protobuf import xplane_pb2  # the wheel may come without it

    planes: list[Any] = []
    for path in files:
        space = xplane_pb2.XSpace()
        try:
            space.ParseFromString(path.read_bytes())
        except DecodeError as error:
            raise ValueError(f"{path.name} is no profile") from error
        planes += space.planes
    return planes


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
