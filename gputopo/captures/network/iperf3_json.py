"""The JSON of iperf3 (`-J`, and the events of `--json-stream`): text in, Machine out."""

import json
import re
from collections.abc import Iterator
from typing import Any

from gputopo.captures.bandwidth import runs
from gputopo.captures.bandwidth.matrix_rows import MAX_GB_PER_S
from gputopo.captures.network import ends
from gputopo.captures.network.ends import Report
from gputopo.captures.network.iperf3_text import SOURCE, without_addresses
from gputopo.values.bandwidth import NotMeasured, Sample
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine

READS = "`iperf3 -J` JSON"
FACTS = "measured bandwidth between hosts"

_HINT = "run `iperf3 -J` again and copy all that it prints"
_START = re.compile(r'\{\s*(?:"start"\s*:\s*\{|"event"\s*:\s*"(?:start|interval|end|error)")')
_VERSION = re.compile(r'"version"\s*:\s*"iperf 3|"error"\s*:|"event"\s*:\s*"')
_PROTOCOLS = ("TCP", "UDP", "SCTP")


def recognise(text: str) -> bool:
    """Return whether a JSON object of iperf3 begins in the text."""
    return _START.search(text) is not None and _VERSION.search(text) is not None


def parse(text: str, *, origin: str) -> Machine:
    """Read every JSON object of iperf3 in the text. Raises InputError where one is cut off or odd."""
    machines = [_machine(document, origin=origin) for document in _documents(text, origin)]
    if not machines:
        raise InputError(f"{origin} holds no result of iperf3", _HINT)
    names = [f"run {number}" for number in range(1, len(machines) + 1)]
    return machines[0] if len(machines) == 1 else runs.joined(names, machines, SOURCE, origin=origin)


def arrived(text: str, *, origin: str) -> tuple[float, ...]:
    """Return GB/s of each interval at the receiver of one run, where the text has its server's output.

    Intervals that were cut short at the end are left out. Raises InputError as `parse` does.
    """
    found: list[tuple[float, float]] = []  # seconds, GB/s
    for document in _documents(text, origin):
        intervals = _object(document.get("server_output_json")).get("intervals")
        for one in intervals if isinstance(intervals, list) else ():
            total = _object(_object(one).get("sum"))
            seconds, bits = total.get("seconds"), total.get("bits_per_second")
            if (
                isinstance(seconds, int | float)
                and isinstance(bits, int | float)
                and total.get("sender") is False
            ):
                found.append((seconds, bits / 8e9))
    whole_s = max((seconds for seconds, _ in found), default=0.0)
    return tuple(rate for seconds, rate in found if seconds >= whole_s / 2 and 0 <= rate <= MAX_GB_PER_S)


def _documents(text: str, origin: str) -> Iterator[dict[str, Any]]:
    """Yield the document of each run; events of one run are put together."""
    streamed: dict[str, Any] = {}
    end = 0
    while start := _START.search(text, end):
        try:
            found, end = json.JSONDecoder().raw_decode(text, start.start())
        except RecursionError as error:
            raise InputError(f"{origin} is JSON that is nested too deep", _HINT) from error
        except ValueError as error:
            raise InputError(f"{origin} is not complete JSON: {error}", _HINT) from error
        if "event" not in found:
            yield found
            continue
        if found["event"] == "start" and streamed:
            yield streamed
            streamed = {}
        if found["event"] != "interval":
            streamed[found["event"]] = found.get("data")
    if streamed:
        yield streamed


def _machine(document: dict[str, Any], *, origin: str) -> Machine:
    """Make the machine of one object. Raises InputError where it is no output of iperf3."""
    head, tail = _object(document.get("start")), _object(document.get("end"))
    report = Report()
    asked = _object(head.get("test_start"))
    protocol = asked.get("protocol")
    transport = protocol if protocol in _PROTOCOLS else None
    both = bool(asked.get("bidir"))
    for suffix in ("", "_bidir_reverse"):
        rate = _rate(tail, suffix, transport, report)
        if rate is None:
            continue
        source, destination = ends.ends(to_client=bool(asked.get("reverse")) != bool(suffix))
        report.samples.append(
            Sample(
                kind="network",
                source=source,
                destination=destination,
                with_reverse=both or "sum_received_bidir_reverse" in tail,
                median_gb_per_s=rate,
                tool=SOURCE,
                transport=transport,
                streams=_count(asked.get("num_streams")),
            )
        )
        _note(report, _object(tail.get(f"sum_sent{suffix}")), "retransmits", "segments were sent again")
        lost = _object(tail.get(f"sum{suffix}"))
        _note(report, lost, "lost_packets", "datagrams were lost")
    error = document.get("error")
    if isinstance(error, str) and error.startswith("interrupt - "):
        report.complete = False
    elif isinstance(error, str):
        report.fail(SOURCE, without_addresses(error.removeprefix("error - ")))
    if not (report.samples or report.failures or report.not_measured):
        if not head:
            raise InputError(f"{origin} is JSON of iperf3 without a test", _HINT)
        report.not_measured.append(NotMeasured(what=SOURCE, reason="the JSON has no rate of the whole test"))
        report.complete = False
    return ends.machine(SOURCE, report)


def _rate(tail: dict[str, Any], suffix: str, transport: str | None, report: Report) -> float | None:
    """Return the rate of all streams at the receiver, GB/s.

    Old versions have one of UDP, `sum`: what was sent, and the share of it that was lost.
    """
    received, sent, whole = (
        _gb_per_s(tail, f"{name}{suffix}") for name in ("sum_received", "sum_sent", "sum")
    )
    rate = sent if sent is not None else whole
    if received or rate is None:
        return received or None
    if received is not None or not rate:
        return ends.sent_alone(SOURCE, rate, transport, report)
    lost = _object(tail.get(f"sum{suffix}")).get("lost_percent")
    if transport == "UDP" and isinstance(lost, int | float) and 0 <= lost <= 100:
        return rate * (1 - lost / 100) or ends.sent_alone(SOURCE, rate, transport, report)
    return rate


def _gb_per_s(tail: dict[str, Any], name: str) -> float | None:
    bits = _object(tail.get(name)).get("bits_per_second")
    return bits / 8e9 if isinstance(bits, int | float) and 0 <= bits / 8e9 <= MAX_GB_PER_S else None


def _note(report: Report, of: dict[str, Any], name: str, words: str) -> None:
    if count := _count(of.get(name)):
        report.notes[f"{SOURCE}: {count} {words}"] = None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63 else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
