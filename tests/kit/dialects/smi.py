"""A Machine as `nvidia-smi -q`, `nvidia-smi -q -x` and `nvidia-smi --query-gpu` print it, by driver."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal
from xml.sax.saxutils import escape

import msgspec

from gputopo.values.machine import Gpu, Machine
from tests.kit.dialects.smi_rows import Row, rows

Dialect = Literal["text", "xml", "csv"]

_UNITS = {"MiB": "MiB", "%": "%", "C": "C", "MHz": "MHz", "us": "us"}
_CSV_UNITS = ("MiB", "%", "MHz", "W", "us")  # temperatures have none
_PROCESS_KINDS = {"compute": "C", "graphics": "G", "compute+graphics": "C+G", "mps": "M+C"}
_WORDS = {"vgpu": "VGPU", "p2p": "P2P", "and": "and"}


def text(machine: Machine, era: int) -> str:
    """Return the text of `nvidia-smi -q`."""
    width = 55 if era >= 590 else 42 if era >= 515 else 36
    head = [
        "",
        "==============NVSMI LOG==============",
        "",
        _line("Timestamp", "Thu Nov 14 14:58:00 2024", 0, width),
        *_versions(machine, era, lambda name, value: _line(name, value, 0, width)),
        "",
        _line("Attached GPUs", str(len(machine.gpus)), 0, width),
    ]
    for gpu in machine.gpus:
        head += [f"GPU {_address(gpu.pci_address, era)}", *_text_rows(rows(era), gpu, era, 1, width), ""]
    return "\n".join([*head, ""])


def xml(machine: Machine, era: int) -> str:
    """Return the XML of `nvidia-smi -q -x`."""
    tags = {"Driver Version": "driver_version", "CUDA Version": "cuda_version"}
    lines = [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">',
        "<nvidia_smi_log>",
        "\t<timestamp>Thu Nov 14 14:58:00 2024</timestamp>",
        *_versions(machine, era, lambda name, value: f"\t<{tags[name]}>{value}</{tags[name]}>"),
        f"\t<attached_gpus>{len(machine.gpus)}</attached_gpus>",
    ]
    for gpu in machine.gpus:
        lines += [f'\t<gpu id="{_address(gpu.pci_address, era)}">', *_xml_rows(rows(era), gpu, era, 2)]
        lines += ["\t</gpu>", ""]
    return "\n".join([*lines, "</nvidia_smi_log>", ""])


def csv(machine: Machine, era: int) -> str:
    """Return the CSV of `nvidia-smi --query-gpu` with all columns."""
    columns = [row for row in _flat(rows(era)) if row.csv and row.fact != "name"]
    lines = [["index", "name", "driver_version", *map(_title_of, columns)]]
    for gpu in machine.gpus:
        cells = [_printed(row, gpu, era, "csv") for row in columns]
        lines.append([str(gpu.index), gpu.name or "[N/A]", machine.driver.version or "[N/A]", *cells])
    return "".join(", ".join(line) + "\n" for line in lines)


def _title_of(row: Row) -> str:
    return f"{row.csv} [{row.printed}]" if row.fact and row.printed in _CSV_UNITS else row.csv or ""


def facts(era: int, dialect: Dialect) -> tuple[tuple[str, str], ...]:
    """Return the facts that a dialect prints for each GPU, with the kind of each."""
    printed = [row for row in _flat(rows(era)) if row.fact and getattr(row, dialect)]
    printed = [row for row in printed if row.printed != "instant"]
    if dialect == "csv":
        printed = [row for row in printed if row.printed not in ("instances", "processes")]
    return tuple((row.fact or "", row.printed) for row in printed)


def names(era: int, dialect: Dialect) -> dict[str, str]:
    """Return the paths of a dialect's rows, with the fact of each row."""
    found: dict[str, str] = {}

    def walk(some: Sequence[Row], path: str) -> None:
        for row in some:
            name = getattr(row, dialect)
            below = path if dialect == "csv" or (dialect == "xml" and row.printed) else f"{path}{name}/"
            walk(row.rows, below)
            if name and row.printed and row.printed not in ("instances", "processes", "instant"):
                found[_title_of(row) if dialect == "csv" else path + name] = row.fact or ""

    walk(rows(era), "")
    return found


def value(gpu: Gpu, fact: str) -> Any:
    """Return the value of a fact (`memory_mib.total`); for `throttle.gpu_idle`, whether it is active."""
    if fact.startswith("throttle.") and fact != "throttle.mask":
        reasons = gpu.throttle.reasons
        return None if reasons is None else fact.removeprefix("throttle.") in reasons
    for table in ("violation_ns", "fabric.health"):
        if fact.startswith(f"{table}."):
            return (_attribute(gpu, table) or {}).get(fact.removeprefix(f"{table}."))
    if fact.startswith("ecc.counts["):
        return (gpu.ecc.counts or {}).get(fact.removeprefix("ecc.counts[").rstrip("]"))
    return _attribute(gpu, fact)


def _attribute(of: Any, path: str) -> Any:
    for name in path.split("."):
        of = getattr(of, name)
    return of


def _flat(found: Sequence[Row]) -> Iterator[Row]:
    for row in found:
        yield row
        yield from _flat(row.rows)


def _versions(machine: Machine, era: int, write: Any) -> list[str]:
    lines = [write("Driver Version", machine.driver.version or "N/A")]
    return lines + ([write("CUDA Version", machine.driver.cuda_version or "N/A")] if era >= 410 else [])


def _line(name: str, value: str | None, depth: int, width: int) -> str:
    name = "    " * depth + name
    return name if value is None else f"{name:{width - 1}} : {value}"


def _text_rows(found: Sequence[Row], gpu: Gpu, era: int, depth: int, width: int) -> Iterator[str]:
    for row in found:
        if row.text is None or (row.optional and value(gpu, row.fact or "") is None):
            continue
        if row.printed == "instances":
            for index in range(gpu.mig.instances or 0):
                yield _line("MIG Device", None, depth, width)
                yield _line("Index", str(index), depth + 1, width)
                yield _line("FB Memory Usage", None, depth + 1, width)
                yield _line("Total", "9984 MiB", depth + 2, width)
        elif row.printed == "processes":
            yield from _text_processes(gpu, era, depth, width)
        elif _is_absent(row, gpu, era):
            yield _line(row.text, "N/A", depth, width)
        else:
            shown = _printed(row, gpu, era, "text") if row.printed else None
            yield _line(row.text, shown, depth, width)
            yield from _text_rows(row.rows, gpu, era, depth + 1, width)


def _is_absent(row: Row, gpu: Gpu, era: int) -> bool:
    """Return whether a section has `N/A` instead of its rows, as the remapped rows of a GPU without them."""
    return row.text == "Remapped Rows" and all(
        value(gpu, one.fact) is None for one in _flat(row.rows) if one.fact is not None
    )


def _text_processes(gpu: Gpu, era: int, depth: int, width: int) -> Iterator[str]:
    if not gpu.processes:
        yield _line("Processes", "N/A" if gpu.processes is None else "None", depth, width)
        return
    yield _line("Processes", None, depth, width)
    width = min(width, 42)  # driver 595 still has this width
    for process in gpu.processes:
        if era >= 450:
            yield _line("GPU instance ID", "N/A", depth + 1, width)
            yield _line("Compute instance ID", "N/A", depth + 1, width)
        yield _line("Process ID", str(process.pid), depth + 1, width)
        yield _line("Type", _PROCESS_KINDS[process.kind or "compute"], depth + 2, width)
        yield _line("Name", f"/usr/bin/{process.name}" if process.name else "[Not Found]", depth + 2, width)
        used = "N/A" if process.memory_mib is None else f"{process.memory_mib} MiB"
        yield _line("Used GPU Memory", used, depth + 2, width)


def _xml_rows(found: Sequence[Row], gpu: Gpu, era: int, depth: int) -> Iterator[str]:
    margin = "\t" * depth
    for row in found:
        if row.xml is None or (row.optional and value(gpu, row.fact or "") is None):
            continue
        if row.printed == "instances":
            yield f"{margin}<mig_devices>"
            for index in range(gpu.mig.instances or 0):
                yield f"{margin}\t<mig_device><index>{index}</index></mig_device>"
            if not gpu.mig.instances:
                yield f"{margin}\tNone" if gpu.mig.instances == 0 else f"{margin}\tN/A"
            yield f"{margin}</mig_devices>"
        elif row.printed == "processes":
            yield from _xml_processes(gpu, era, margin)
        elif _is_absent(row, gpu, era):
            yield f"{margin}<{row.xml}>N/A</{row.xml}>"
        elif row.printed:
            opened, _, last = row.xml.rpartition("/")
            inner = f"<{last}>{escape(_printed(row, gpu, era, 'xml'))}</{last}>"
            yield margin + (f"<{opened}>{inner}</{opened}>" if opened else inner)
            yield from _xml_rows(row.rows, gpu, era, depth)
        else:
            yield f"{margin}<{row.xml}>"
            yield from _xml_rows(row.rows, gpu, era, depth + 1)
            yield f"{margin}</{row.xml}>"


def _xml_processes(gpu: Gpu, era: int, margin: str) -> Iterator[str]:
    if gpu.processes is None:
        yield f"{margin}<processes>N/A</processes>"
        return
    yield f"{margin}<processes>"
    for process in gpu.processes:
        yield f"{margin}\t<process_info>"
        if era >= 450:
            yield f"{margin}\t\t<gpu_instance_id>N/A</gpu_instance_id>"
            yield f"{margin}\t\t<compute_instance_id>N/A</compute_instance_id>"
        yield f"{margin}\t\t<pid>{process.pid}</pid>"
        yield f"{margin}\t\t<type>{_PROCESS_KINDS[process.kind or 'compute']}</type>"
        yield f"{margin}\t\t<process_name>/usr/bin/{process.name}</process_name>"
        used = "N/A" if process.memory_mib is None else f"{process.memory_mib} MiB"
        yield f"{margin}\t\t<used_memory>{used}</used_memory>"
        yield f"{margin}\t</process_info>"
    yield f"{margin}</processes>"


def _address(address: str | None, era: int) -> str:
    """Return an address with a domain of 8 digits, or of 4 digits before driver 384."""
    domain, _, rest = (address or "0000:00:00.0").partition(":")
    return f"{domain:0>{8 if era >= 384 else 4}}:{rest}".upper()


def _printed(row: Row, gpu: Gpu, era: int, dialect: Dialect) -> str:
    fact = row.fact or ""
    found = value(gpu, fact)
    if found is None:
        if dialect != "csv" or fact.startswith("fabric.health."):
            return "N/A"
        return "[N/A]" if era >= 450 else "[Not Supported]"
    return _of_kind(row.printed, found, era, dialect)


def _of_kind(kind: str, found: Any, era: int, dialect: Dialect) -> str:
    if kind in _UNITS:
        number = found // 1000 if kind == "us" else found
        return str(number) if kind == "C" and dialect == "csv" else f"{number} {_UNITS[kind]}"
    switches: Mapping[str, tuple[str, str]] = {
        "switch": ("Disabled", "Enabled"),
        "yes": ("No", "Yes"),
        "active": ("Not Active", "Active"),
    }
    if kind in switches:
        return switches[kind][bool(found)]
    if kind == "address":
        return _address(found, era)
    if kind == "width":
        return str(found) if dialect == "csv" else f"{found}x"
    if kind == "banks":
        return str(found) if dialect == "csv" else f"{found} bank(s)"
    if kind == "device":
        return f"{'' if dialect == 'xml' else '0x'}{found.upper()}10DE"
    if kind == "subsystem":
        return f"{'' if dialect == 'xml' else '0x'}{found.upper()}"
    return _PRINTED[kind](found)


def _title(words: str) -> str:
    """Return words with the drivers' capitals: `Pass-Through`, `Not Started`, `Drain and Reset`."""
    return " ".join(
        _WORDS.get(word, "-".join(part.capitalize() for part in word.split("-"))) for word in words.split()
    )


_PRINTED: dict[str, Callable[[Any], str]] = {
    "words": str,
    "count": str,
    "W": "{:.2f} W".format,
    "instant": lambda found: f"{found + 1.5:.2f} W",  # next to the average over a second, which is the fact
    "mask": "0x{:016X}".format,
    "mode": lambda found: "_".join(word.capitalize() for word in found.split("_")),
    "title": _title,
    "reset": lambda found: "Yes" if found == "reset" else "No",
    "drain": lambda found: "Yes" if found == "drain and reset" else "No",
}


def with_facts(index: int, told: Mapping[str, Any]) -> Gpu:
    """Return a GPU with facts by name, as in `value`. `throttle.reasons` is a tuple of names."""
    nested: dict[str, Any] = {"index": index}
    for fact, found in told.items():
        if found is None:
            continue
        if fact.startswith("ecc.counts["):
            counts = nested.setdefault("ecc", {}).setdefault("counts", {})
            counts[fact.removeprefix("ecc.counts[").rstrip("]")] = found
            continue
        *rooms, last = fact.split(".")
        into = nested
        for name in rooms:
            into = into.setdefault(name, {})
        into[last] = found
    return msgspec.convert(nested, Gpu)
