"""The JSON of perftest (`ib_write_bw --out_json`, ...): text in, Machine out.

It names no unit of its rates, which are MiB/s, or Gb/s with --report_gbits: the message rate beside each
decides. A run over all sizes (-a) leaves the last one only.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from gputopo.captures.bandwidth import runs
from gputopo.captures.bandwidth.matrix_rows import MAX_GB_PER_S, MAX_US
from gputopo.captures.network import ends
from gputopo.captures.network.ends import Report
from gputopo.captures.network.perftest import LINKS, SOURCE, UNITS, Test
from gputopo.values.bandwidth import NotMeasured, Sample
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine

READS = "perftest JSON (`ib_write_bw --out_json`, ...)"
FACTS = "measured bandwidth and latency between hosts"

_HINT = "copy the whole file that --out_json wrote"
_START = re.compile(r'\{\s*"test_info"\s*:\s*\{')
_TITLE = re.compile(
    r"(Send|RDMA_Write|RDMA_Read|Atomic)(?:_imm)?_(?:\w*_)??(Bidirectional_)?(?:\w*_)?(?:BW|Latency)_"
)
_UNITS = (UNITS["MiB"], UNITS["Gb"])
_SURE = 3.0  # a rate and its message rate differ by rounding; the two units by 119


def recognise(text: str) -> bool:
    """Return whether a JSON object of perftest begins in the text."""
    return _START.search(text) is not None


def parse(text: str, *, origin: str) -> Machine:
    """Read every JSON object of perftest in the text. Raises InputError where one is cut off or odd."""
    machines = [_machine(document) for document in _documents(text, origin)]
    names = [f"run {number}" for number in range(1, len(machines) + 1)]
    return machines[0] if len(machines) == 1 else runs.joined(names, machines, SOURCE, origin=origin)


def _documents(text: str, origin: str) -> Iterator[dict[str, Any]]:
    end = 0
    while start := _START.search(text, end):
        try:
            found, end = json.JSONDecoder().raw_decode(text, start.start())
        except RecursionError as error:
            raise InputError(f"{origin} is JSON that is nested too deep", _HINT) from error
        except ValueError as error:
            raise InputError(f"{origin} is not complete JSON: {error}", _HINT) from error
        yield found


def _machine(document: dict[str, Any]) -> Machine:
    """Return the machine of one object."""
    about, results = document["test_info"], document.get("results")
    report = Report()
    if (card := about.get("Device")) and re.fullmatch(r"[\w.-]{1,40}", str(card)):
        report.notes[f"{SOURCE} used the network card {card}"] = None
    if (link := about.get("Link_type")) in LINKS:
        report.notes[f"{SOURCE} ran over {LINKS[link]}"] = None
    sample = _sample(about, results if isinstance(results, dict) else {})
    if isinstance(sample, str):
        report.not_measured.append(NotMeasured(what=f"{SOURCE} {str(about.get('test'))[:60]}", reason=sample))
    else:
        report.samples.append(sample)
    return ends.machine(SOURCE, report)


def _sample(about: dict[str, Any], results: dict[str, Any]) -> Sample | str:
    """Return the measurement of one object, or why there is none."""
    title = _TITLE.match(str(about.get("test")))
    if title is None:
        return "its test is not known"
    test = Test(title[1].lower(), title[2] is not None)
    size, rate = _number(results.get("MsgSize")), _number(results.get("BW_average"))
    qps = about.get("Number_of_qps")
    qps = qps if isinstance(qps, int) and qps > 0 else None
    us = _number(results.get("t_typical", results.get("t_avg")))
    if size is not None and us is not None and us <= MAX_US:
        return test.sample(int(size), us=us, qps=qps)
    if size is None or rate is None:
        return "the JSON has no size or no rate"
    per_s = (_number(results.get("MsgRate")) or 0.0) * size / 1e3  # GB/s
    fitting = [unit for unit in _UNITS if per_s / _SURE <= rate * unit <= per_s * _SURE]
    if len(fitting) != 1 or rate * fitting[0] > MAX_GB_PER_S:
        return "the JSON names no unit, and its message rate shows none"
    return test.sample(int(size), gb_per_s=rate * fitting[0], qps=qps)


def _number(value: Any) -> float | None:
    """Return a number above 0, else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < 1e15 else None
