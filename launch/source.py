"""The machine of a command: read from the captures of `--from` if any were given, else this machine."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputopo.report import note
from gputopo.values.errors import GputopoError, InputError
from gputopo.values.option import Option

if TYPE_CHECKING:
    from gputopo.launch.site import Site
    from gputopo.planner import Request
    from gputopo.values.machine import Machine


FROM = Option(
    "--from",
    "Read a capture or bundled machine (7gforce)",
    detail="Instead of this machine. Captures: a gputopo recording, output or a log of nvidia-smi, "
    "nvidia-bug-report.log, a kernel log, an error message of the driver, output of lspci, lscpu, numactl, "
    "TensorFlow or a bandwidth test, topology XML of NCCL, a folder with a copied /sys; compressed or not; "
    "- for stdin. The format is detected by content. Repeatable",
    value="FILE",
    repeated=True,
)


def machine_from(sources: Sequence[str]) -> "Machine":
    """Return the machine of the captures, or read this one.

    `GPUTOPO_ROOT` is a folder that replaces `/`: /sys, /proc and /dev are read below it. Raises InputError
    for a capture that cannot be read.
    """
    with begin_reading(sources) as read:
        return read()


@contextlib.contextmanager
def begin_reading(sources: Sequence[str]) -> "Iterator[Callable[[], Machine]]":
    """Start to read what `machine_from` returns; the value of the `with` block is a function that returns it.

    NVML is read in another process, so that modules can be loaded meanwhile. Messages about a slow driver are
    printed to stderr.
    """
    if sources:
        from gputopo import captures

        def read_tree(root: Path) -> "Machine":
            from gputopo import probes  # loads modules that only a copied /sys needs

            return probes.read_tree(root)

        yield lambda: captures.load(sources, read_tree=read_tree)
        return
    from gputopo import probes

    with probes.begin_reading(root_folder(), note) as machine:
        yield machine


def with_ports_now(machine: "Machine") -> "Machine":
    """Return this machine with the ports and counters of its network cards read again."""
    from gputopo import probes

    return probes.with_ports_now(machine, root_folder())


def root_folder() -> Path:
    """Return the folder under which /sys, /proc and /dev are read."""
    return Path(os.environ.get("GPUTOPO_ROOT") or "/")


def planned_machine(sources: Sequence[str], *, pairs: bool = True) -> "Machine":
    """Return the machine to plan for: a captured one unchanged, this one with its last saved bandwidth.

    The date of that bandwidth, or why it or a part of it cannot be used, is printed to stderr. `pairs` False:
    no bandwidth of this machine is read, because one GPU is planned or earlier measurements are not used.
    Raises InputError for a capture whose bandwidth contradicts physics or itself.
    """
    machine = machine_from(sources)
    if sources and machine.bandwidth is not None:
        _require_consistent(machine)
    if sources or not pairs or len(machine.gpus) < 2 or machine.bandwidth is not None:
        return machine
    from gputopo.runs import BoxHistory  # loads SQLite only if there is a file

    try:
        saved = BoxHistory().latest(machine)
    except GputopoError as error:
        note(f"planned without measured bandwidth: {error.what}")
        return machine
    if saved is None:
        return machine
    import msgspec

    from gputopo.findings import contradiction

    note(f"with the bandwidth measured on {saved.date}")
    machine = msgspec.structs.replace(machine, bandwidth=saved.bandwidth)
    if wrong := contradiction(machine):
        note(f"some of it is not used: {wrong}")
    return machine


def site_for(request: "Request", sources: Sequence[str] = (), **settings: Any) -> "Site":
    """Return where a request is planned: this machine, or the machine of captures. Raises GputopoError.

    Saved bandwidth is read if the request uses it. `settings`: fields of `Site`.
    """
    from gputopo.launch.site import Site, rehearsal_name

    machine = planned_machine(sources, pairs=not (request.is_of_one_gpu or request.no_history))
    return Site(machine, rehearsal_of=rehearsal_name(sources), **settings)


def _require_consistent(machine: "Machine") -> None:
    from gputopo.findings import contradiction

    if wrong := contradiction(machine):
        raise InputError(
            f"the measured bandwidth is impossible or contradicts itself: {wrong}",
            "measure again, or remove the wrong capture: gputopo bandwidth --from FILE shows it",
        )
