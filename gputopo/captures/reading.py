"""Reads the files after `--from`, or a text, into a Machine. The content decides the format."""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from itertools import combinations, islice
from pathlib import Path

from msgspec.structs import replace

from gputopo.captures import detect, intake, ledger, limits, merging, recording
from gputopo.captures.ledger import Format
from gputopo.captures.matching import SINGLE_DEVICE
from gputopo.values.errors import InputError
from gputopo.values.fields import short_address
from gputopo.values.machine import Contradiction, Gap, LineCounts, Machine
from gputopo.values.option import listed, nearest

_STDIN = "standard input"
_FINGERPRINT = "host.fingerprint"
# Lines with a time of dmesg that are searched for another output. Not measured; chosen because the first
# lines of an output identify it.
_MAX_TIMED = 500
_OTHER_UUIDS = "their GPUs have other UUIDs"

ReadTree = Callable[[Path], Machine]  # reads the folder that has `sys`


def load(sources: Sequence[str], *, read_tree: ReadTree | None = None) -> Machine:
    """Read one machine from files, `-` (standard input) or names of bundled machines; several are merged.

    A file has priority over a bundled machine of the same name. `read_tree` reads a folder with a copied
    /sys; without `read_tree` such a folder is refused. Raises InputError.
    """
    if not sources:
        raise InputError(
            "there is nothing to read", "give a file, - for standard input, or a bundled machine"
        )
    if sources.count("-") > 1:
        raise InputError("standard input can be read only once", "give - once")
    machines = []
    for source in sources:
        with limits.limited_time(_STDIN if source == "-" else source):
            machines.append(_load_one(source, read_tree))
    names = _names(sources)
    _refuse_machines_of_files(sources, machines)
    unknown = _unknown_host(names, machines)
    if len(machines) > 1:
        from gputopo.captures.bandwidth import bandwidth_test, runs  # most captures are one file

        names, machines = runs.by_files(names, bandwidth_test.renumbered(sources, machines))
    merged = merging.merge(machines, names)
    if unknown is not None:
        merged = replace(merged, contradictions=(*merged.contradictions, unknown))
    if merged.bandwidth is None:
        return merged
    from gputopo.copies import checked  # few captures have a bandwidth; it needs the GPUs of all

    return replace(merged, bandwidth=checked(merged.bandwidth, merged))


def _names(sources: Sequence[str]) -> list[str]:
    """Return the files' names for messages: without folders, unless two files have the same name."""
    names = [Path(source).name if source != "-" else _STDIN for source in sources]
    return names if len(set(names)) == len(names) else list(sources)


def _refuse_machines_of_files(sources: Sequence[str], machines: Sequence[Machine]) -> None:
    """Raise InputError if two files are from two machines, by the identities of the host and its GPUs."""
    given = zip(sources, _names(sources), machines, strict=True)
    for (path, first, machine), (other_path, second, other) in combinations(given, 2):
        hosts = {machine.host.fingerprint, other.host.fingerprint}
        why = _other_gpus(machine, other)
        if len(hosts) > 1 and None not in hosts:
            what = f"{first} and {second} are two hosts"
        elif why:
            what = f"{first} and {second} are of two machines: {why}"
        else:
            continue
        raise InputError(what, f"add --fleet: gputopo inspect --fleet --from {path} {other_path}")


def _unknown_host(names: Sequence[str], machines: Sequence[Machine]) -> Contradiction | None:
    """Return the host fingerprints of several recordings if not all recordings have one."""
    said = {
        name: machine.host.fingerprint or "none"
        for name, machine in zip(names, machines, strict=True)
        if machine.source.startswith("live")
    }
    return Contradiction(fact=_FINGERPRINT, said=said) if len(said) > 1 and "none" in said.values() else None


def _other_gpus(first: Machine, second: Machine) -> str | None:
    """Return why two captures by one tool have no GPU in common; a different count is not a reason."""
    if first.source != second.source or first.source == SINGLE_DEVICE or len(first.gpus) != len(second.gpus):
        return None
    for why, mine in _identities(first).items():
        theirs = _identities(second)[why]
        if mine and theirs and None not in mine | theirs and not mine & theirs:
            return why
        if mine & theirs - {None} and why == _OTHER_UUIDS:
            return None
    return None


def _identities(machine: Machine) -> dict[str, set[str | None]]:
    """Return the identities of GPUs, by the message for two machines that share none; None: not known."""
    gpus = machine.gpus
    return {
        _OTHER_UUIDS: {gpu.uuid for gpu in gpus},
        "their GPUs have other PCI addresses": {
            gpu.pci_address and short_address(gpu.pci_address) for gpu in gpus
        },
        "their GPUs are of other models": {
            gpu.name and gpu.name.lower().removeprefix("nvidia ") for gpu in gpus
        },
    }


def _load_one(source: str, read_tree: ReadTree | None) -> Machine:
    if source == "-":
        if sys.stdin is None or sys.stdin.closed:
            raise InputError("standard input is closed", "pipe a capture into it, or give a file")
        return read_bytes(sys.stdin.buffer.read(limits.MAX_FILE_BYTES + 1), origin=_STDIN)
    if not source:
        raise InputError(
            "the name of the file is empty", "give a file, - for standard input, or a bundled machine"
        )
    if not Path(source).is_file() and source in recording.bundled_names():
        return recording.read_bundled(source)
    if read_tree is not None:
        from gputopo.captures.pci import sysfs  # not for a bundled machine

        if (root := sysfs.root_in(Path(source))) is not None:
            return read_tree(root)
    return read_bytes(_content(Path(source)), origin=source)


def _content(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(limits.MAX_FILE_BYTES + 1)
    except IsADirectoryError as error:
        hint = "give a file in it, or the folder with a copied sys"
        raise InputError(f"{path} is a folder", hint) from error
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}", _nearest(str(path))) from error
    except PermissionError as error:
        raise InputError(f"{path}: permission denied", "change its permissions, or copy it") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot read {path}: {reason}", "give a readable file") from error


def _nearest(source: str) -> str:
    known = recording.bundled_names()
    if os.sep in source:
        return "check the path"
    if near := nearest(source, known):
        return f"did you mean the bundled {listed(near)}? (all: {', '.join(known)})"
    return f"check the path, or use a bundled machine: {', '.join(known)}"


def read_bytes(data: bytes, *, origin: str) -> Machine:
    """Read the content of one file: text in any format, packed or not. Raises InputError."""
    if len(data) > limits.MAX_FILE_BYTES:
        size = limits.MAX_FILE_BYTES >> 20
        raise InputError(f"{origin} is larger than {size} MiB", "give only the capture")
    text = intake.decoded(intake.unpacked(data, origin=origin, max_bytes=limits.MAX_TEXT_BYTES))
    if text is None:
        raise InputError(f"{origin} is a binary file, not text", detect.USE)
    limits.require_text_size(text, origin)
    machine = read_text(text, origin=origin)
    limits.require_gpus(machine.gpus, origin)
    return machine


def read_text(text: str, *, origin: str) -> Machine:
    """Read the text of one file in any format. Raises InputError.

    A text may have several captures of one machine, such as a bug report: they are merged.
    """
    if not text.strip():
        raise InputError(f"{origin} is empty", "make the capture again; the command may have failed")
    if "NVIDIA bug report" in text or "nvidia-bug-report.sh" in text:
        from gputopo.captures import bug_report
        from gputopo.captures.pci import pci_tree

        if bug_report.detect(text):
            return pci_tree.with_hops(merging.merge(bug_report.parse(text, origin, _captures)))
    return merging.merge(_captures(text, origin))


def _captures(text: str, origin: str) -> list[Machine]:
    """Read the captures in a text, each as a machine. Raises InputError if no format is known."""
    from gputopo.captures import messages

    document = text.lstrip().startswith(("{", "[{"))
    text = text if document else intake.clean(text, origin=origin)
    machines: list[Machine] = []
    refused: InputError | None = None
    try:
        machines = _machines(text, origin) if document else _by_format(text, origin)
    except limits.TooMuchError:
        raise
    except InputError as error:
        refused = error
    is_recording = document and any(machine.source != "nvbandwidth" for machine in machines)
    captures = machines if is_recording else messages.add(machines, text)
    if not captures:
        raise refused or detect.refusal(text, origin=origin)
    if refused is not None:
        captures[-1] = replace(captures[-1], gaps=(Gap(source=origin, text=refused.what),))
    return captures


def _by_format(text: str, origin: str) -> list[Machine]:
    """Read all formats in a cleaned text; the list is empty if no format is known."""
    from gputopo.captures import kernel_log
    from gputopo.captures.smi import csv_table, dmon

    for log in (csv_table, dmon):
        if log.is_whole(text):  # it may have many lines: other formats are not tried
            return [ledger.completed(log.parse(text, origin=origin), text, log.FORMAT)]
    timed = [match["line"] for match in islice(kernel_log.TIMED.finditer(text), _MAX_TIMED)]
    if timed and detect.format_of("\n".join(timed), but=kernel_log.FORMAT) is not None:
        text = kernel_log.TIMED.sub(r"\g<line>", text)
    taken = kernel_log.take(text)
    if taken.is_whole:
        return [kernel_log.counted(taken)]
    if taken.is_log and not detect.is_readable(taken.rest):
        return [kernel_log.counted(taken, alone=True)]
    machines = _machines(taken.rest, origin)
    return [*machines, kernel_log.counted(taken)] if taken.lines and machines else machines


def _machines(text: str, origin: str) -> list[Machine]:
    from gputopo.captures.bandwidth import programs

    if detect.format_of(text) is not programs.FORMAT:
        return _sections(text, origin)
    try:
        machine, rest = programs.take(text, origin=origin)
    except InputError:
        if machines := _sections(text, origin, but=programs.FORMAT):  # it only mentions a bandwidth tool
            return machines
        raise
    from gputopo.captures import nccl_log

    others = _sections(rest, origin, but=programs.FORMAT)
    if nccl_log.detect(text):  # the measuring program counts the log's lines
        with contextlib.suppress(InputError):  # from AMD's RCCL, or only a few lines
            others.append(nccl_log.parse(text, origin=origin))
    if not others:
        return [ledger.completed(programs.with_unread(machine, rest), text, programs.FORMAT)]
    understood = len(ledger.filled(text)) - len(ledger.filled(rest))
    counts = LineCounts(source=machine.source, read=understood, known=0, not_understood=0)
    return [*others, replace(machine, lines=(counts,))]


def _sections(text: str, origin: str, *, but: Format | None = None) -> list[Machine]:
    """Read the sections of a text that have a known format."""
    kinds = [(s, kind) for s in detect.sections(text) if (kind := detect.format_of(s, but=but)) is not None]
    machines = [kind.parse(section, origin=origin) for section, kind in kinds]
    _refuse_other_machines(machines, origin)
    if text.lstrip().startswith("{"):
        return machines
    whole = [ledger.completed(machine, *of) for machine, of in zip(machines, kinds, strict=True)]
    return ledger.with_strays(whole, text, [section for section, _ in kinds])


def _refuse_other_machines(machines: Sequence[Machine], origin: str) -> None:
    """Raise InputError if outputs of `nvidia-smi -q` in one text, XML or not, are from several machines."""
    outputs = [machine for machine in machines if machine.source.startswith("nvidia-smi -q")]
    if len(outputs) > 1:
        from gputopo.captures.smi.machine import identity_of, refuse_others

        refuse_others(
            [identity_of(output, f"one of the outputs ({output.source})") for output in outputs], origin
        )


def readable() -> list[tuple[str, str]]:
    """Return each format, and each container of several formats, with the facts that are read."""
    from gputopo.captures import bug_report, messages
    from gputopo.captures.pci import sysfs

    kinds = [(kind.reads, kind.facts) for kind in detect.formats()]
    return [
        *kinds,
        (messages.READS, messages.FACTS),
        (bug_report.READS, bug_report.FACTS),
        (sysfs.READS, sysfs.FACTS),
    ]
