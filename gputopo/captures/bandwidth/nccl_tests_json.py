"""The JSON of `all_reduce_perf -J` and the other nccl-tests (2.17 and later): text in, Machine out.

Of each process it lists only the first GPU; those after it have the next numbers, and are taken to be of the
same model. Its environment is searched for NCCL's variables and dropped, as are the host names.
"""

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec

from gputopo.captures.ledger import Format
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine, Unread

if TYPE_CHECKING:  # loaded for such a text only: every format is asked whether a text is its own
    from gputopo.captures.bandwidth.nccl_tests_runs import NcclRow, NcclRun, Rank, Timed

SOURCE = "nccl-tests"

_HINT = "copy the whole file that -J wrote"
_ROWS = re.compile(r'"(?:in_place|out_of_place)"\s*:')
_RESULTS = re.compile(r'"results"\s*:\s*\[')
_START = re.compile(r"\S")
_MAX_RANKS = 4096
_ADDRESS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?\Z", re.ASCII)


def recognise(text: str) -> bool:
    """Return whether the text is JSON with results of nccl-tests."""
    start = text.lstrip()
    results = _RESULTS.search(start) if start.startswith("{") else None
    return results is not None and (_ROWS.search(start) is not None or '"average_bus_' in start)


def parse(text: str, *, origin: str) -> Machine:
    """Read every JSON object in the text. Raises InputError where one is cut off or odd."""
    from gputopo.captures import merge
    from gputopo.captures.bandwidth import nccl_tests_runs
    from gputopo.captures.bandwidth.runs import documents

    runs: list[NcclRun] = []
    notes: list[str] = []
    unread: list[str] = []
    for document in documents(text, _START, origin=origin, hint=_HINT):
        if not isinstance(document, dict) or not isinstance(document.get("results"), list):
            raise InputError(f"{origin} is JSON of nccl-tests without its results", _HINT)
        runs.append(nccl_tests_runs.NcclRun())
        _read(document, runs, notes, unread)
    made = nccl_tests_runs.machine(runs, origin=origin)
    found = made.bandwidth
    if found is None or not (found.samples or found.failures or found.not_measured):
        raise InputError(f"{origin}: there is no result of nccl-tests in it", _HINT)
    lines = tuple(Unread(source=SOURCE, line=0, text=one[:200]) for one in unread)
    bandwidth = msgspec.structs.replace(found, notes=tuple(dict.fromkeys([*found.notes, *notes])))
    return merge.merge([msgspec.structs.replace(made, bandwidth=bandwidth, unread=lines)])


def _read(document: dict[str, Any], runs: "list[NcclRun]", notes: list[str], unread: list[str]) -> None:
    """Read one object into the last run, which it may follow by its cycles (-N)."""
    from gputopo.captures.bandwidth import nccl_tests

    run = runs[-1]
    arguments = [one for one in _list(document.get("args")) if isinstance(one, str)]
    run.program = nccl_tests.program_of(" ".join(arguments))
    for one in [*_list(document.get("env")), *arguments]:
        if isinstance(one, str):
            run.facts.update(nccl_tests.settings_of(one))
    version = document.get("nccl_version")
    if isinstance(version, int) and 1000 <= version < 10**6:
        run.nccl_version = nccl_tests.version_of(version)
    config = document.get("config")
    config = config if isinstance(config, dict) else {}
    devices = config.get("devices", document.get("devices"))
    run.ranks = _ranks(_list(devices), _count(config, "ngpus") * _count(config, "nthreads"), notes)
    average = document.get(
        "average_bus_bandwidth", document.get("average_bus_bandwidith")
    )  # so spelt at first
    run.complete = isinstance(average, dict)
    for one in document["results"]:
        row = _row(one)
        if row is None:
            unread.append(f"results: {json.dumps(one)[:150]}")
        elif row.bytes:
            run.by_cpu_time = run.by_cpu_time or _has_cpu_time(one)
            if not runs[-1].add(row):
                runs.append(run.again())
                runs[-1].add(row)
    bounds = document.get("out_of_bounds")
    if isinstance(bounds, dict) and isinstance(count := bounds.get("count"), int) and count > 0:
        run.out_of_bounds = count
    if isinstance(average, dict) and average.get("okay") in ("false", False):
        rate = _number(average.get("bandwidth", average.get("bandwidith"))) or 0.0
        says = f"average bus bandwidth {rate:g} GB/s is below NCCL_TESTS_MIN_BW"
        run.failures.append(("BELOW_MINIMUM", says))
    run.last_error = next(
        (one for one in _list(document.get("errors")) if isinstance(one, str) and one), None
    )


def _ranks(devices: list[Any], per_process: int, notes: list[str]) -> "list[Rank]":
    """Return all ranks: each listed one, and those of its process that are not listed."""
    from gputopo.captures.bandwidth.nccl_tests_runs import Rank

    listed = [rank for one in devices if (rank := _rank(one)) is not None]
    numbers = {rank.number for rank in listed}
    if len(listed) < len(devices) or len(numbers) < len(listed):
        return []
    whole = per_process < 2 or any(number % per_process for number in numbers)
    if whole or len(listed) * per_process > _MAX_RANKS:
        return listed
    notes.append(
        f"{SOURCE}: the JSON lists the first GPU of each process; the {per_process - 1} after it are taken "
        "to be of the same model"
    )
    return [
        rank
        if not more
        else Rank(rank.number + more, rank.host, rank.group, rank.device + more, None, rank.name)
        for rank in listed
        for more in range(per_process)
    ]


def _rank(one: Any) -> "Rank | None":
    from gputopo.captures.bandwidth.nccl_tests_runs import Rank

    if not isinstance(one, dict):
        return None
    number, device, group = (_index(one.get(name)) for name in ("rank", "device", "group"))
    host, address, name = (one.get(name) for name in ("hostname", "device_hex", "device_info"))
    if number is None or device is None or not isinstance(host, str) or not isinstance(name, str):
        return None
    at = address.lower() if isinstance(address, str) and _ADDRESS.match(address) else None
    return Rank(number, host.split(".")[0], group or 0, device, at, name.strip()[:120])


def _row(one: Any) -> "NcclRow | None":
    """Read a result, None where it is none, or its numbers contradict one another."""
    from gputopo.captures.bandwidth.nccl_tests_runs import NcclRow

    size = _index(one.get("size"), 2**53) if isinstance(one, dict) else None
    if size is None:
        return None
    halves = [
        (name == "in_place", one[name]) for name in ("out_of_place", "in_place") if one.get(name) is not None
    ]
    timed = [_timed(half, size, in_place=in_place) for in_place, half in halves]
    found = tuple(half for half in timed if half is not None)
    if not found or len(found) != len(timed) or not isinstance(data_type := one.get("type"), str):
        return None
    reduction = one.get("redop")
    root = str(one.get("root", "")).strip()
    return NcclRow(
        size,
        data_type[:20],
        reduction[:20] if isinstance(reduction, str) and reduction.strip() not in ("", "none") else None,
        int(root) if root.isascii() and root.isdecimal() and len(root) < 6 else None,
        found,
    )


def _timed(half: Any, size: int, *, in_place: bool) -> "Timed | None":
    from gputopo.captures.bandwidth.nccl_tests_runs import Timed

    if not isinstance(half, dict):
        return None
    us = _number(half.get("time", half.get("cpu_time")))
    algorithm, bus, wrong = (_number(half.get(name)) for name in ("alg_bw", "bus_bw", "nwrong"))
    if not us or algorithm is None or bus is None:
        return None
    found = Timed(in_place, us, algorithm, bus, None if wrong is None else int(wrong), wrong is None)
    return found if size == 0 or found.agrees(size) else None


def _has_cpu_time(one: dict[str, Any]) -> bool:
    return any(
        isinstance(one.get(name), dict) and "cpu_time" in one[name] for name in ("in_place", "out_of_place")
    )


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e15 else None


def _index(value: Any, below: int = 10**6) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below else None


def _count(config: dict[str, Any], name: str) -> int:
    return _index(config.get(name)) or 1


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


FORMAT = Format(
    "nccl-tests JSON (`all_reduce_perf -J FILE`, ...)",
    "collective operations: bandwidths, times, wrong results",
    recognise,
    parse,
)
