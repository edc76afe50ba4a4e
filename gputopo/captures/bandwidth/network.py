"""Bandwidth between hosts: the JSON of iperf3 and the text of linux-rdma's perftest (`ib_write_bw`, ...).

The ends are the client and the server; addresses and host names are dropped, because they identify somebody's
machine. For perftest the average is used, because the peak is the rate of the few fastest messages. Its
MB/sec, before 2021, are MiB/sec: both divide by 2^20 (perftest_parameters.c, print_report_bw).
"""

import re
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from gputopo.captures.bandwidth import runs
from gputopo.captures.bandwidth.texts import (
    MAX_GB_PER_S,
    MAX_US,
    Program,
    ProgramRead,
    Results,
    positive,
    understood_of,
)
from gputopo.captures.ledger import Format
from gputopo.values.bandwidth import NETWORK_ERROR, Failure, Transfer, TransferLatency, TransferRate
from gputopo.values.ends import End
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine

IPERF3 = "iperf3"
PERFTEST = "perftest"

_CLIENT, _SERVER = End.of_host("client"), End.of_host("server")


def _fail(results: Results, message: str) -> None:
    """Add an error that the program reports."""
    says = f"{results.source}: {message.strip()[:200]}"
    failed = Failure(kind="network", source=_CLIENT, destination=_SERVER, reason=NETWORK_ERROR, says=says)
    results.failures[failed] = None


def _machine(results: Results) -> Machine:
    """Return the machine, which has no GPU."""
    return Machine(source=results.source, bandwidth=results.bandwidth())


def _ends(*, to_client: bool) -> tuple[End, End]:
    """Return source and destination of a transfer."""
    return (_SERVER, _CLIENT) if to_client else (_CLIENT, _SERVER)


# iperf3 -J

_HINT = "run `iperf3 -J` again and copy all that it prints"
_START = re.compile(r'\{\s*"start"\s*:\s*\{')
_VERSION = re.compile(r'"version"\s*:\s*"iperf 3|"error"\s*:')
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){3,7}\b|'[^']{1,255}'")


def detect(text: str) -> bool:
    """Return whether a JSON object of iperf3 starts in the text."""
    return _START.search(text) is not None and _VERSION.search(text) is not None


def parse(text: str, *, origin: str) -> Machine:
    """Read every JSON object of iperf3 in the text. Raises InputError if one is cut or invalid."""
    documents = runs.documents(text, _START, origin=origin, hint=_HINT)
    machines = [_parse_iperf3(document, origin) for document in documents]
    return runs.of_documents(machines, IPERF3, origin=origin, hint=_HINT)


def _parse_iperf3(document: dict[str, Any], origin: str) -> Machine:
    """Return the machine of one run. Raises InputError if it is not an output of iperf3."""
    head, tail = _object(document.get("start")), _object(document.get("end"))
    results = Results(IPERF3)
    settings = _object(head.get("test_start"))
    protocol = settings.get("protocol")
    transport = protocol if protocol in ("TCP", "UDP", "SCTP") else None
    for suffix in ("", "_bidir_reverse"):
        rate = _rate(tail, suffix, transport, results)
        if rate is None:
            continue
        source, destination = _ends(to_client=bool(settings.get("reverse")) != bool(suffix))
        name = f"sum{suffix}"
        listed = document.get("intervals")
        each = map(_object, listed) if isinstance(listed, list) else ()
        # Without the intervals that `-O` omits at the start.
        intervals = (interval for interval in each if not _object(interval.get(name)).get("omitted"))
        rates = (_gb_per_s(interval, name) for interval in intervals)
        parts = tuple(filter(None, rates))
        results.samples.append(
            TransferRate(
                kind="network",
                source=source,
                destination=destination,
                with_reverse=bool(settings.get("bidir")) or "sum_received_bidir_reverse" in tail,
                median_gb_per_s=rate,
                repeats_gb_per_s=parts,
                spread_percent=100 * (max(parts) - min(parts)) / median(parts) if parts else None,
                tool=IPERF3,
                transport=transport,
                streams=_count(settings.get("num_streams")),
            )
        )
        for total, name, words in (
            ("sum_sent", "retransmits", "segments were sent again"),
            ("sum", "lost_packets", "datagrams were lost"),
        ):
            if count := _count(_object(tail.get(f"{total}{suffix}")).get(name)):
                results.notes[f"{IPERF3}: {count} {words}"] = None
    error = document.get("error")
    if isinstance(error, str) and error.startswith("interrupt - "):
        results.complete = False
    elif isinstance(error, str):
        _fail(results, _ADDRESS.sub("HOST", error.removeprefix("error - ")))
    if not (results.samples or results.failures or results.skipped):
        if not head:
            raise InputError(f"{origin} is JSON of iperf3 without a test", _HINT)
        results.skip(IPERF3, "the JSON has no rate of the whole test")
        results.complete = False
    return _machine(results)


def _rate(tail: dict[str, Any], suffix: str, transport: str | None, results: Results) -> float | None:
    """Return the rate of all streams at the receiver in GB/s, or None if unknown.

    If the receiver reports no bytes, TCP's rate is the sender's, because TCP resends until all bytes have
    arrived; UDP's rate is unknown.
    """
    received, sent = (_gb_per_s(tail, f"{name}{suffix}") for name in ("sum_received", "sum_sent"))
    if received or (received is None and sent is None):
        return received or None
    if sent and transport != "UDP":
        results.notes[f"{IPERF3}: the receiver reports no bytes; the rate is the sender's"] = None
        return sent
    results.skip(f"{IPERF3} {transport or ''}".rstrip(), "the receiver reports no bytes")
    return None


def _gb_per_s(totals: dict[str, Any], name: str) -> float | None:
    bits = _object(totals.get(name)).get("bits_per_second")
    return bits / 8e9 if isinstance(bits, int | float) and 0 <= bits / 8e9 <= MAX_GB_PER_S else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63 else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# perftest

_MAX_BYTES = 2**40
_MAX_STREAMS = 1 << 20
_GB_PER_S = {"MB": 2**20 / 1e9, "MiB": 2**20 / 1e9, "Gb": 1 / 8}
_TITLE = re.compile(
    r"^(Send|RDMA_Write|RDMA_Read|Atomic)(?:_imm)?(?: (?!BW|Latency|Bidirectional)\w{1,30})?( Bidirectional)?"
    r"(?: Post List)? (BW|Latency)(?: forwarding)?(?: Multicast)? Test$",
    re.IGNORECASE,
)
_RATES = re.compile(r"^#?bytes\b(\s+#sl\b)?.{0,80}\bBW average\[(MB|MiB|Gb)/sec\]")
_LATENCIES = re.compile(r"^#?bytes\s+#iterations\s.{0,80}?\b(t_typical|t_avg)\[usec\]")
_MARKS = re.compile(
    r"\bBW average\[(?:MB|MiB|Gb)/sec\]|#iterations\s.{0,80}?\bt_(?:typical|avg)\[usec\]"
    r"|^[^\w\n]{0,40}(?:Send|RDMA_(?:Write|Read)|Atomic)(?:_imm)?(?: \w{1,30}){0,3} (?:BW|Latency) Test\s*$"
    r"|^ ?(?:Completion with error at (?:client|server)|Couldn't connect to \S{1,255}:\d{1,5}"
    r"|Unexpected CM event \w.{0,80}|Port number \d{1,3} state is (?!Active)\w{1,20})\s*$",
    re.MULTILINE,
)
_ROW = re.compile(r"^\d{1,13}(?:\s+-?\d{1,15}(?:\.\d{1,9})?){2,12}$", re.ASCII)
_STREAMS = re.compile(r"^Number of (?:qps\s*:|qp's running) (\d{1,7})\b")
_LINK = re.compile(r"^Link type\s*: (IB|Ethernet)\b")
_DEVICE = re.compile(r"\bDevice\s*: ([\w.-]{1,40})$")
_ERROR = re.compile(
    r"^(?:Couldn't \w.{0,160}|Unable to \w.{0,160}|Failed (?:to|status) .{0,160}"
    r"|Completion with error at (?:client|server).{0,80}|IB device .{0,80} not found"
    r"|Did not detect devices.{0,80}|Unexpected CM event .{0,80}"
    r"|Port number \d{1,3} state is (?!Active)\w{1,20})$"
)
# Settings (`TX depth : 128`), addresses, remarks: the other lines that it prints.
_PROSE = re.compile(r"^(?:[A-Za-z][\w ./*|'-]{1,40}\s*:.*|.*\bMTU\b.*|\* Waiting for client .*|[-*]{5,}.*)$")
_VERBS = {
    "send": ("send", "RDMA send"),
    "rdma_write": ("write", "RDMA write"),
    "rdma_read": ("read", "RDMA read"),
    "atomic": ("atomic", "RDMA atomic"),
}
_LINKS = {"IB": "InfiniBand", "Ethernet": "Ethernet (RoCE)"}


class _Column(NamedTuple):
    """Which word of a row is used, and its unit in GB/s; None: microseconds."""

    place: int
    unit: float | None


@dataclass(slots=True)
class Perftest(Results):
    """The tests of one text. `verb`: None without a title."""

    source: str = PERFTEST
    marks: list[runs.Mark] = field(default_factory=list)
    understood: frozenset[int] = frozenset()
    verb: str | None = None
    bidirectional: bool = False
    column: _Column | None = None
    streams: int | None = None

    def add(self, number: int, line: str) -> bool:
        """Read one line. Returns False if it is not understood."""
        if title := _TITLE.match(line):
            self.verb, self.bidirectional = title[1].lower(), title[2] is not None
            self.column = self.streams = None
            self.complete = False  # until its first row is read
        elif rates := _RATES.match(line):
            self.column = _Column(4 if rates[1] else 3, _GB_PER_S[rates[2]])
        elif latencies := _LATENCIES.match(line):
            self.column = _Column(4 if latencies[1] == "t_typical" else 2, None)
        elif _ROW.match(line):
            return self._row(number, line.split())
        elif streams := _STREAMS.match(line):
            self.streams = min(int(streams[1]), _MAX_STREAMS) or None
        elif link := _LINK.match(line):
            self.notes[f"{PERFTEST} ran over {_LINKS[link[1]]}"] = None
        elif _ERROR.match(line):
            _fail(self, re.sub(r"(connect to) \S+", r"\1 the server", line))
        else:
            if device := _DEVICE.search(line):
                self.notes[f"{PERFTEST} used the network card {device[1]}"] = None
            return _PROSE.match(line) is not None
        return True

    def measured(self) -> list[runs.Mark]:
        """Return the rows' lines and what they measured."""
        return self.marks

    def read(self, *, origin: str) -> ProgramRead:
        """Return the machine, with the lines that were understood."""
        del origin  # nothing in such a text is refused
        return ProgramRead(_machine(self), self.understood)

    def _row(self, number: int, words: list[str]) -> bool:
        column = self.column
        if self.verb is None or column is None or len(words) <= column.place:
            return False
        if not 0 < int(words[0]) <= _MAX_BYTES:
            return False
        value = positive(words[column.place], MAX_US if column.unit is None else MAX_GB_PER_S)
        if value is None and not words[column.place].startswith("-"):
            return False
        if value is None:  # its counters overflowed, or the CPU's clock changed
            reason = f"the average that it prints is negative: {words[column.place]}"
            self.skip(f"{PERFTEST}: {words[0]} bytes", reason)
            self.complete = True
            return True
        sample = self._sample(int(words[0]), value, column.unit)
        self.samples.append(sample)
        self.complete = True
        of = (sample.kind, sample.transport, sample.bytes, sample.streams, sample.source)
        self.marks.append((number, of))
        return True

    def _sample(self, size: int, value: float, unit: float | None) -> Transfer:
        source, destination = _ends(to_client=self.verb == "rdma_read")
        program, transport = _VERBS[self.verb or ""]
        if unit is None:
            return TransferLatency(
                source=source,
                destination=destination,
                bytes=size,
                median_us=value,
                tool=f"ib_{program}_lat",
                transport=transport,
                streams=self.streams,
            )
        return TransferRate(
            kind="network_bidirectional" if self.bidirectional else "network",
            source=source,
            destination=destination,
            bytes=size,
            median_gb_per_s=value * unit,
            tool=f"ib_{program}_bw",
            transport=transport,
            streams=self.streams,
        )


def is_perftest(text: str) -> bool:
    """Return whether the text has a line that only the programs of perftest print."""
    return _MARKS.search(text) is not None


def read_perftest(text: str, *, origin: str) -> ProgramRead:
    """Read the tests of perftest in a text, with the numbers of the lines that were understood."""
    return runs.read(text, _scan, PERFTEST, origin=origin)


def _scan(text: str, above: Perftest | None) -> Perftest:
    """Return the content of one run; a run without a title has the test of the run above."""
    perftest = Perftest()
    if above is not None and _TITLE.search(text) is None:
        perftest.verb, perftest.bidirectional, perftest.column = above.verb, above.bidirectional, above.column
    perftest.understood = understood_of(text, perftest.add)
    return perftest


PROGRAM = Program(is_perftest, read_perftest)
FORMAT = Format("`iperf3 -J` JSON", "measured bandwidth between hosts", detect, parse)
