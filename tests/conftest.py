"""What holds for all tests: their order, signals that arrive, temporary folders in memory where it has room.

In memory because the kit's /sys trees are thousands of small files. And what keeps a run short: files whose
tests all need TensorFlow are not even imported for `-m 'not tensorflow'`, and the collector of garbage has
no need to look at what collecting tests has made.
"""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.kit.cuda_libraries import with_cuda_libraries

# Of all property tests. Each run has other examples, so a few are enough; CI has the same each time, so that
# no change fails by an example that another brought. No limits of time: the machine is noisy. What is slow
# is measured in benchmarks.
settings.register_profile(
    "suite",
    max_examples=10,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
)
settings.load_profile("suite")

# Hundreds of programs are started: each would compile all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2**30
# As in the command: loading modules creates 100,000 objects and no garbage.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000
_SLOW = ("sessions", "tensorflow")
_WITHOUT_TENSORFLOW = "not tensorflow"
_ALL_NEED_IT = "\npytestmark = pytest.mark.tensorflow\n"
# Folders whose files all read what one process found.
TOGETHER = ("tests/launch/train/inputs/", "tests/launch/data/")


def pytest_configure(config: pytest.Config) -> None:
    _let_programs_hear_signals()
    if not hasattr(config, "workerinput") and _has_room():
        _write_into_memory(config)
    _have_a_home(config)
    _have_cuda_libraries(config)


def _write_into_memory(config: pytest.Config) -> None:
    """Have all temporary files of these tests, their workers and the programs under test in memory."""
    folder = tempfile.mkdtemp(prefix="gputopo-tests-", dir=_MEMORY)
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    if config.option.basetemp is None:
        config.option.basetemp = os.path.join(folder, "pytest")
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def _have_a_home(config: pytest.Config) -> None:
    """Keep runs, saved bandwidth and claims of GPUs from the user's, and from those of other workers."""
    os.environ["GPUTOPO_HOME"] = home = tempfile.mkdtemp(prefix="gputopo-home-")
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))


def _have_cuda_libraries(config: pytest.Config) -> None:
    """Let TensorFlow on the kit's machines have its CUDA libraries, as far as gputopo looks for them."""
    folder = tempfile.mkdtemp(prefix="gputopo-cuda-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ.update(with_cuda_libraries(Path(folder)))


def needs_tensorflow(path: Path) -> bool:
    """Return, without importing it, whether all tests of a file need TensorFlow."""
    return path.suffix == ".py" and _ALL_NEED_IT in path.read_text(encoding="utf-8")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if _without_tensorflow(config) and needs_tensorflow(collection_path) else None


def _without_tensorflow(config: pytest.Config) -> bool:
    return bool(config.option.markexpr.strip() == _WITHOUT_TENSORFLOW)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect tests without collecting garbage: the modules and tests stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first and short ones last, so that no worker has a long one alone."""
    ranks: dict[Path, int] = {}
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        rank = next((number for number, name in enumerate(_SLOW) if name in marks), len(_SLOW))
        ranks[item.path] = min(rank, ranks.get(item.path, rank))
    items.sort(key=lambda item: ranks[item.path])  # stable: else in their order


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """As `--dist loadfile`, but folders whose files share a session's fixture stay on one worker."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return next((folder for folder in TOGETHER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)  # with -p no:xdist there is no such hook
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def _let_programs_hear_signals() -> None:
    """Let the programs under test hear a Ctrl-C and its kind also where these tests were to ignore them.

    So it is in a shell's job in the background and under nohup. What is ignored stays so in every program
    that is started; what has a handler is back at its default there.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def _has_room() -> bool:
    return os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
