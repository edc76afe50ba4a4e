"""The text of iperf3, of its client or its server: text in, Machine out.

The lines of `sender` and `receiver` at the end count: the receiver's where it is there, and that of all
streams (`[SUM]`) where there are several. Up to 3.6 the end of a UDP test names neither: it has the rate that
was sent and how many datagrams were lost. Formats: its src/iperf_locale.c and src/units.c.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from gputopo.captures.bandwidth import runs
from gputopo.captures.bandwidth.matrix_rows import MAX_GB_PER_S, Read, understood_of
from gputopo.captures.network import ends
from gputopo.captures.network.ends import Report
from gputopo.values.bandwidth import NotMeasured, Sample

SOURCE = "iperf3"

_RATE = r"(\d{1,12}(?:\.\d{1,6})?) ([KMGT]?)(bit|Byte)s?/sec"
_ROW = re.compile(
    r"^\[ *(\d{1,6}|SUM)\](?:\[([TR]X)-([CS])\])? +\d{1,12}\.\d\d?- *\d{1,12}\.\d\d? +sec"
    rf" +\d{{1,12}}(?:\.\d{{1,6}})? [KMGT]?Bytes? +{_RATE}(.{{0,80}})$",
    re.ASCII,
)
_END = re.compile(r"\b(sender|receiver)$")
_RETRANSMITS = re.compile(r"^ +(\d{1,15}) +sender$", re.ASCII)
_LOST = re.compile(r" (\d{1,15})/(\d{1,15}) \(\S{1,12}%\) *(?:receiver)?$", re.ASCII)
_HEAD = re.compile(r"^\[ ID\](?:\[Role\])? Interval +Transfer +(?:Bitrate|Bandwidth)\b(.*)$")
_CLIENT = re.compile(r"^Connecting to host \S{1,255}, port \d{1,5}")
_SERVER = re.compile(r"^Accepted connection from \S{1,255}, port \d{1,5}$")
_REVERSE = re.compile(r"^Reverse mode, remote host \S{1,255} is sending")
_STARTING = re.compile(r"^Starting Test: protocol: (TCP|UDP|SCTP), (\d{1,5}) streams,")
_SUMMARY = re.compile(r"^(?:(?:- ){3,}-?|Test Complete\. Summary Results:)$")  # then the head comes again
# iperf 2, another program, prints rows alike and nothing that is a summary for certain.
_IPERF_2 = re.compile(
    r"^[^\w\n]{0,20}(?:Client connecting to \S{1,255},|Server listening on) (?:TCP|UDP) port \d",
    re.MULTILINE,
)
_OWN = re.compile(
    r"^Connecting to host |^Accepted connection from | (?:sender|receiver)$|iperf3: ", re.MULTILINE
)
_INTERRUPTED = re.compile(r"^(?:\S{0,80}/)?iperf3: (?:interrupt - |the client has terminated).*$")
_ERROR = re.compile(r"^(?:\S{0,80}/)?iperf3: (?:error - |the )(.{1,300})$|^error - (.{1,300})$")
_PROSE = re.compile(
    r"^(?:- ){3,}-?$|^-{20,}$|^\[ *(?:\d{1,6}|SUM)\] (?:local \S+ port .*|\((?:sender|receiver) statistics .*"
    r"|Sent \d+ datagrams|Server Report:)$|^\[ *(?:\d{1,6}|SUM)\].* datagrams received out-of-order$"
    r"|^(?:iperf Done\.|iperf 3\..*|Server listening on .*|Test Complete\. Summary Results:|Time: .*"
    r"|CPU Utilization: .*|(?:snd|rcv)_tcp_congestion .*|Cookie: .*|TCP MSS: .*"
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


Rates = Mapping[tuple[str, bool], float]  # GB/s by stream or SUM, and whether it is the receiver's


@dataclass(slots=True)
class _Test:
    """One test. `line`: of its first rate; `rates`: by whether they go to the client, None: not known yet."""

    is_server: bool = False
    is_reverse: bool = False
    is_both_ways: bool = False
    transport: str = "TCP"
    intervals: int = 0
    line: int = 0
    rates: dict[bool | None, dict[tuple[str, bool], float]] = field(default_factory=dict)

    def samples(self, report: Report) -> Iterator[Sample]:
        """Yield a sample for each direction; what is not one is added to the report."""
        for to_client, rates in self.rates.items():
            source, destination = ends.ends(to_client=self._to_client(rates, to_client))
            value, streams = _of_all(rates, self.transport, report)
            if value is None:
                continue
            yield Sample(
                kind="network",
                source=source,
                destination=destination,
                with_reverse=self.is_both_ways,
                median_gb_per_s=value,
                tool=SOURCE,
                transport=self.transport,
                streams=streams,
            )

    def _to_client(self, rates: Rates, known: bool | None) -> bool:
        """Whether the data went to the client: a server prints only its own end."""
        if known is not None:
            return known
        if self.is_server:
            return not any(is_receiver for _, is_receiver in rates)
        return self.is_reverse


class _Reader:
    """One text, line by line."""

    def __init__(self) -> None:
        self.report = Report()
        self.tests = [_Test()]
        self.is_of_other_end = False  # below `Server output:` the lines of the server come once more
        self.is_below_rule = self.is_summary = self.is_iperf_2 = False

    def add(self, number: int, line: str) -> bool:
        """Take one line; False where it is not understood."""
        line = _STAMP.sub("", line, count=1)
        was_rule, self.is_below_rule = self.is_below_rule, _SUMMARY.match(line) is not None
        if _CLIENT.match(line):
            self._begin(_Test())
        elif line == "Server output:":
            self.is_of_other_end = True
        elif self.is_of_other_end:
            self.is_of_other_end = line != "iperf Done."
        elif _IPERF_2.match(line):
            self.is_iperf_2 = True
            return False
        elif row := _ROW.match(line):
            return not self.is_iperf_2 and self._row(number, row)
        elif head := _HEAD.match(line):
            self.is_summary = was_rule
            if "Datagrams" in head[1]:
                self.tests[-1].transport = "UDP"
        elif _SERVER.match(line):
            self._begin(_Test(is_server=True))
        elif _REVERSE.match(line):
            self.tests[-1].is_reverse = True
        elif starting := _STARTING.match(line):
            self.tests[-1].transport = starting[1]
        elif _INTERRUPTED.match(line):
            self.report.complete = False
        elif error := _ERROR.match(line):
            self.report.fail(SOURCE, without_addresses(error[1] or error[2]))
        else:
            return not line or _PROSE.match(line) is not None
        return True

    def _begin(self, test: _Test) -> None:
        self.tests.append(test)
        self.is_of_other_end = self.is_summary = self.is_iperf_2 = False

    def _row(self, number: int, row: re.Match[str]) -> bool:
        who, sends, role, value, power, unit, rest = row.groups()
        # Bits count in powers of 1000, bytes in powers of 1024 (units.c).
        factor = 1000.0 ** _POWERS[power] / 8 if unit == "bit" else 1024.0 ** _POWERS[power]
        rate: float = float(value) * factor / 1e9
        if rate > MAX_GB_PER_S:
            return False
        end, lost = _END.search(rest), _LOST.search(rest.rstrip())
        if end is None and not (self.is_summary and lost):
            self.tests[-1].intervals += 1
            return True
        if end is None and lost and int(lost[2]):
            rate *= max(0.0, 1 - int(lost[1]) / int(lost[2]))
        to_client = None if sends is None else (sends == "RX") == (role == "C")
        key = (who, end is None or end[1] == "receiver")
        if key in self.tests[-1].rates.get(to_client, {}):  # the head of the next test is not there
            last = self.tests[-1]
            self.tests.append(_Test(last.is_server, last.is_reverse, transport=last.transport))
        test = self.tests[-1]
        test.is_both_ways |= sends is not None
        test.line = test.line or number
        if (sent_again := _RETRANSMITS.match(rest)) and int(sent_again[1]) and who != "SUM":
            self.report.notes[f"{SOURCE}: {sent_again[1]} segments of a stream were sent again"] = None
        if lost and int(lost[1]) and who != "SUM" and key[1]:
            self.report.notes[f"{SOURCE}: {lost[1]} of {lost[2]} datagrams were lost"] = None
        test.rates.setdefault(to_client, {})[key] = rate
        return True


def _of_all(rates: Rates, transport: str, report: Report) -> tuple[float | None, int]:
    """Return the rate of all streams, GB/s, and how many there are. None: not known what arrived."""
    at_receiver = any(is_receiver for _, is_receiver in rates)
    streams = max(1, len({who for who, _ in rates} - {"SUM"}))
    if whole := _sum(rates, at_receiver=at_receiver):
        return whole, streams
    sent = _sum(rates, at_receiver=False)
    return ends.sent_alone(SOURCE, sent, transport, report), streams


def _sum(rates: Rates, *, at_receiver: bool) -> float:
    counted = {who: rate for (who, is_receiver), rate in rates.items() if is_receiver == at_receiver}
    return counted["SUM"] if "SUM" in counted else sum(counted.values())


def without_addresses(words: str) -> str:
    """Return the words of an error without IP addresses and names after `to`."""
    words = re.sub(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){3,7}\b", "HOST", words)
    return re.sub(r"'[^']{1,255}'", "HOST", words)


def recognise(text: str) -> bool:
    """Return whether the text has a line that only this program prints."""
    return _MARKS.search(text) is not None and (
        _IPERF_2.search(text) is None or _OWN.search(text) is not None
    )


def read(text: str, *, origin: str) -> Read:
    """Read the tests of a text, with the numbers of the lines that were understood."""
    del origin  # nothing in such a text is refused
    reader = _Reader()
    understood = understood_of(text, reader.add)
    report, lines = reader.report, []
    for test in reader.tests:
        own = list(test.samples(report))
        report.samples += own
        lines += [test.line] * len(own)
        if not test.rates and test.intervals:
            intervals = f"{test.intervals} interval{'s' if test.intervals > 1 else ''}"
            what = f"{SOURCE}: {intervals} without the rate of the whole test"
            reason = "the output ends before its summary"
            report.not_measured.append(NotMeasured(what=what, reason=reason))
            report.complete = False
    machine = ends.machine(SOURCE, report)
    assert machine.bandwidth is not None
    bandwidth, headings = runs.with_runs(machine.bandwidth, text, lines)
    return Read(replace(machine, bandwidth=bandwidth), understood | headings)
