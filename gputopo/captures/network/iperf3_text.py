"""The text of iperf3, of its client or its server: text in, Machine out.

The lines of `sender` and `receiver` at the end count: the receiver's where it is there, and that of all
streams (`[SUM]`) where there are several. Formats: its src/iperf_locale.c and src/units.c.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gputopo.captures.bandwidth import runs
from gputopo.captures.bandwidth.matrix_rows import MAX_GB_PER_S, Read, understood_of
from gputopo.captures.network import ends
from gputopo.captures.network.ends import Report
from gputopo.values.bandwidth import NotMeasured, Sample

SOURCE = "iperf3"

_RATE = r"(\d{1,12}(?:\.\d{1,6})?) ([KMGT]?)(bit|Byte)s?/sec"
_ROW = re.compile(
    r"^\[ *(\d{1,6}|SUM)\](?:\[([TR]X)-([CS])\])? +\d{1,9}\.\d\d?- *\d{1,9}\.\d\d? +sec"
    rf" +\d{{1,12}}(?:\.\d{{1,6}})? [KMGT]?Bytes? +{_RATE}(.{{0,80}})$",
    re.ASCII,
)
_END = re.compile(r"\b(sender|receiver)$")
_RETRANSMITS = re.compile(r"^ +(\d{1,15}) +sender$", re.ASCII)
_LOST = re.compile(r" (\d{1,15})/(\d{1,15}) \(\S{1,12}%\) +receiver$", re.ASCII)
_HEAD = re.compile(r"^\[ ID\](?:\[Role\])? Interval +Transfer +(?:Bitrate|Bandwidth)\b(.*)$")
_CLIENT = re.compile(r"^Connecting to host \S{1,255}, port \d{1,5}")
_SERVER = re.compile(r"^Accepted connection from \S{1,255}, port \d{1,5}$")
_REVERSE = re.compile(r"^Reverse mode, remote host \S{1,255} is sending")
_STARTING = re.compile(r"^Starting Test: protocol: (TCP|UDP|SCTP), (\d{1,5}) streams,")
_ERROR = re.compile(r"^(?:\S{0,80}/)?iperf3: (?:error - |the )(.{1,300})$|^error - (.{1,300})$")
_PROSE = re.compile(
    r"^(?:- ){3,}-?$|^-{20,}$|^\[ *(?:\d{1,6}|SUM)\] (?:local \S+ port .*|\((?:sender|receiver) statistics .*"
    r"|Sent \d+ datagrams|Server Report:)$|^\[ *(?:\d{1,6}|SUM)\].* datagrams received out-of-order$"
    r"|^(?:iperf Done\.|iperf 3\..*|Server listening on .*|Test Complete\. Summary Results:|Time: .*"
    r"|CPU Utilization: .*|(?:snd|rcv)_tcp_congestion .*|Server output:|Cookie: .*|TCP MSS: .*"
    r"|Control connection MSS .*|Connecting to .*|Target Bitrate: .*|Finished omit period.*|UDP .*"
    r"|congestion .*|UUID: .*|Linux \S+ \d.*|Setting UDP block size .*"
    r"|\(pacing .*|\[ *\d+\] WARNING: .*|warning: .*)$",
    re.IGNORECASE,
)
_MARKS = re.compile(
    r"^[^\w\n]{0,20}\[ ID\](?:\[Role\])? Interval +Transfer +(?:Bitrate|Bandwidth)\b|\biperf Done\."
    r"|\[ *(?:\d{1,6}|SUM)\](?:\[[TR]X-[CS]\])? +\d{1,9}\.\d\d- *\d{1,9}\.\d\d +sec .{1,80}s?/sec"
    r"|\biperf3: error - ",
    re.MULTILINE,
)
_STAMP = re.compile(  # --timestamps: by default as ctime writes it
    r"^(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}(?: |$)"
    r"|[\dA-Z][^\[\n]{5,40}(?=\[ *(?:\d{1,6}|SUM|ID)\]))"
)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(slots=True)
class _Scanned:
    """One test. `rates`: GB/s by whether they go to the client (None: not known yet), stream or SUM, and end.

    `--get-server-output` prints the lines of the server once more.
    """

    report: Report = field(default_factory=Report)
    understood: frozenset[int] = frozenset()
    marks: list[runs.Mark] = field(default_factory=list)
    rates: dict[bool | None, dict[tuple[str, bool], float]] = field(default_factory=dict)
    intervals: int = 0
    is_server: bool = False
    is_reverse: bool = False
    is_both_ways: bool = False
    transport: str = "TCP"

    def add(self, number: int, line: str) -> bool:
        """Take one line; False where it is not understood."""
        line = _STAMP.sub("", line, count=1)
        if row := _ROW.match(line):
            return self._row(number, row)
        if head := _HEAD.match(line):
            if "Datagrams" in head[1]:
                self.transport = "UDP"
        elif _CLIENT.match(line):
            self.is_server = False
        elif _SERVER.match(line):
            self.is_server = True
        elif _REVERSE.match(line):
            self.is_reverse = True
        elif starting := _STARTING.match(line):
            self.transport = starting[1]
        elif error := _ERROR.match(line):
            self.report.fail(SOURCE, without_addresses(error[1] or error[2]))
        else:
            return not line or _PROSE.match(line) is not None
        return True

    def measured(self) -> list[runs.Mark]:
        """Return the lines at the end of the tests."""
        return self.marks

    def read(self, *, origin: str) -> Read:
        """Return the machine, with the lines that were understood."""
        del origin  # nothing in such a text is refused
        for to_client, rates in self.rates.items():
            source, destination = ends.ends(to_client=self._to_client(rates, to_client))
            value, streams = _of_all(rates)
            self.report.samples.append(
                Sample(
                    kind="network",
                    source=source,
                    destination=destination,
                    with_reverse=self.is_both_ways,
                    median_gb_per_s=value,
                    transport=self.transport,
                    streams=streams,
                )
            )
        if not self.rates and self.intervals:
            what = f"{SOURCE}: {self.intervals} intervals without the rate of the whole test"
            self.report.not_measured.append(
                NotMeasured(what=what, reason="the output ends before its summary")
            )
            self.report.complete = False
        return Read(ends.machine(SOURCE, self.report), self.understood)

    def _row(self, number: int, row: re.Match[str]) -> bool:
        who, sends, role, value, power, unit, rest = row.groups()
        end = _END.search(rest)
        if end is None:
            self.intervals += 1
            return True
        # Bits count in powers of 1000, bytes in powers of 1024 (units.c).
        factor = 1000.0 ** _POWERS[power] / 8 if unit == "bit" else 1024.0 ** _POWERS[power]
        rate: float = float(value) * factor / 1e9
        to_client = None if sends is None else (sends == "RX") == (role == "C")
        self.is_both_ways |= sends is not None
        self.marks.append((number, (who, to_client, end[1])))
        if retransmits := _RETRANSMITS.match(rest):
            self._note_retransmits(int(retransmits[1]), is_sum=who == "SUM")
        if (lost := _LOST.search(rest)) and int(lost[1]) and who != "SUM":
            self.report.notes[f"{SOURCE}: {lost[1]} of {lost[2]} datagrams were lost"] = None
        if 0 < rate <= MAX_GB_PER_S:
            self.rates.setdefault(to_client, {}).setdefault((who, end[1] == "receiver"), rate)
        return rate <= MAX_GB_PER_S

    def _note_retransmits(self, count: int, *, is_sum: bool) -> None:
        if count and not is_sum:
            self.report.notes[f"{SOURCE}: {count} segments of a stream were sent again"] = None

    def _to_client(self, rates: Mapping[tuple[str, bool], float], known: bool | None) -> bool:
        """Whether the data went to the client: a server prints only its own end."""
        if known is not None:
            return known
        if self.is_server:
            return not any(is_receiver for _, is_receiver in rates)
        return self.is_reverse


def _of_all(rates: Mapping[tuple[str, bool], float]) -> tuple[float, int]:
    """Return the rate of all streams, GB/s, and how many there are."""
    at_receiver = any(is_receiver for _, is_receiver in rates)
    counted = {who: rate for (who, is_receiver), rate in rates.items() if is_receiver == at_receiver}
    whole = counted["SUM"] if "SUM" in counted else sum(counted.values())
    return whole, max(1, len({who for who, _ in rates} - {"SUM"}))


def without_addresses(words: str) -> str:
    """Return the words of an error without IP addresses and names after `to`."""
    words = re.sub(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){3,7}\b", "HOST", words)
    return re.sub(r"'[^']{1,255}'", "HOST", words)


def recognise(text: str) -> bool:
    """Return whether the text has a line that only this program prints."""
    return _MARKS.search(text) is not None


def read(text: str, *, origin: str) -> Read:
    """Read the tests of a text, with the numbers of the lines that were understood."""
    return runs.read(text, _scan, SOURCE, origin=origin)


def _scan(text: str, above: _Scanned | None) -> _Scanned:
    """Return the content of one run; `above`: the one above it, on whose end it was."""
    found = _Scanned()
    if above is not None:
        found.is_server = above.is_server
    found.understood = understood_of(text, found.add)
    return found
