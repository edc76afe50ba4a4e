"""A profile of what this process does, by TensorFlow's profiler; of another host between rank 0's calls."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

_HOST_LEVEL = 2  # every op; level 1 leaves out most of them, level 3 is for those who look into TensorFlow


def start(folder: Path) -> None:
    """Begin a profile. Raises AttributeError, ImportError, OpError where this TensorFlow has no profiler."""
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=_HOST_LEVEL, python_tracer_level=0)
    tf.profiler.experimental.start(str(folder), options)


def stop() -> None:
    """End it, and write it into the folder. Raises ImportError, OSError, OpError."""
    tf.profiler.experimental.stop()


def files(folder: Path) -> list[Path]:
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
            start(self._folder)
        except BaseException:
            self._remove()
            raise
        return np.bool_(True)

    def end(self) -> bytes:
        """End the profile and return it, an XSpace. Raises what `stop` raises, ValueError without a begin."""
        if self._folder is None:
            raise ValueError("no profile has begun")
        try:
            stop()
            (file,) = files(self._folder)
            return file.read_bytes()
        finally:
            self._remove()

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None
