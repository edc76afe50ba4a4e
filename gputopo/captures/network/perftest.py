"""The text of linux-rdma's perftest (`ib_write_bw`, `ib_read_bw`, `ib_send_lat`, ...): text in, Machine out.

Client and server print the same table. The average counts, since the peak is that of the best few messages.
What versions before 2021 print as MB/sec is MiB/sec: both divide by 2^20 (perftest_parameters.c,
print_report_bw).
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from gputopo.captures.bandwidth import runs
from gputopo.captures.bandwidth.matrix_rows import MAX_US, Read, positive, understood_of
from gputopo.captures.network import ends
from gputopo.captures.network.ends import Report
from gputopo.values.bandwidth import Kind, Sample

SOURCE = "perftest"

UNITS = {"MB": 2**20 / 1e9, "MiB": 2**20 / 1e9, "Gb": 1 / 8}  # GB/s
_MAX_BYTES = 2**40
_MAX_STREAMS = 1 << 20
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
    r"|Unexpected CM event \w.{0,80}|Unable to init the socket connection"
    r"|Port number \d{1,3} state is (?!Active)\w{1,20})\s*$",
    re.MULTILINE,
)
_ROW = re.compile(r"^\d{1,13}(?:\s+\d{1,15}(?:\.\d{1,9})?){2,12}$", re.ASCII)
_COMMAND = re.compile(
    r"(?<![\w.])(?:ib_(write|read|send|atomic)|raw_ethernet)_(bw|lat)\b(.{0,400})$", re.ASCII
)
_BIDIRECTIONAL = re.compile(r"(?:^|\s)(?:-[A-Za-z]*b[A-Za-z]*|--bidirectional)(?=\s|$)")
_STREAMS = re.compile(r"^Number of (?:qps\s*:|qp's running) (\d{1,7})\b")
_LINK = re.compile(r"^Link type\s*: (IB|Ethernet)\b")
_DEVICE = re.compile(r"\bDevice\s*: ([\w.-]{1,40})$")
_ERROR = re.compile(
    r"^(?:Couldn't connect to \S{1,255}|Unable to \w.{0,160}|Failed (?:to|status) .{0,160}"
    r"|Completion with error at (?:client|server).{0,80}|IB device .{0,80} not found"
    r"|Did not detect devices.{0,80}|Couldn't (?!connect to \S+:).{0,160}|Unexpected CM event .{0,80}"
    r"|Port number \d{1,3} state is (?!Active)\w{1,20})$"
)
_EACH_END = re.compile(r"^(?:Local|Remote) results:$")  # with --report-both: which host sends is not stated
_GPU_MEMORY = re.compile(r"^cuMemAlloc\(\) of a \d{1,15} bytes GPU buffer$")
_PROSE = re.compile(
    r"^(?:(?:Dual-port|Connection type|PCIe relax order|Lock-free|ibv_wr\* API|[TR]X depth"
    r"|(?:Recv )?Post List|CQ Moderation|CQE Poll Batch|Mtu|Buffer size|GID index2?|Max inline data"
    r"|Outstand reads|rdma_cm QPs|Use \w+ memory|Data ex\. method|NUMA node|DCS (?:active )?num streams"
    r"|Number of data encryption keys|CPU freq|Connected"
    r"|Block Size|TOS|Using SRQ|Transport type)\s*:.*"
    r"|(?:local|remote) address: +(?:LID|GID) .*|(?:local|remote) address:  GID: .*|GID: .*|MGID: .*"
    r"|\** ?Waiting for client .*|Please run the same .*|[sr]cnt=\d.*|Error occurred while running .*"
    r"|Conflicting CPU frequency values.*|WARNING: .*|Test with events\b.*|MultiCast runs on UD.*"
    r"|(?:Initializing|Using|Picking|Calling|making it the current|allocated|deallocating|creating) .*"
    r"|Listing all CUDA devices .*|\[pid = \d+, dev = \d+\] .*|destroying current CUDA Ctx"
    r"|Max msg size in UD is MTU .*|Changing to this MTU|Each Qp will post .*|Inline data is used .*"
    r"|Device not recognized to implement inline feature.*|CUDA .*|Warning: .*|-{20,}|\*{5,}.*)$",
    re.IGNORECASE,
)
_VERBS = {"send": "RDMA send", "rdma_write": "RDMA write", "rdma_read": "RDMA read", "atomic": "RDMA atomic"}
_OF_COMMAND = {"write": "rdma_write", "read": "rdma_read", None: "send"}
_PROGRAMS = {"send": "send", "rdma_write": "write", "rdma_read": "read", "atomic": "atomic"}
LINKS = {"IB": "InfiniBand", "Ethernet": "Ethernet (RoCE)"}
_UNNAMED = f"{SOURCE}: nothing names the test of a table; it is taken as one direction, client to server"


class Test(NamedTuple):
    """A test as its title or command names it; `verb` None: not named."""

    verb: str | None
    bidirectional: bool = False

    def sample(
        self, size: int, *, gb_per_s: float | None = None, us: float | None = None, qps: int | None
    ) -> Sample:
        """Return what this test measured: a rate or a latency of messages of `size` bytes."""
        source, destination = ends.ends(to_client=self.verb == "rdma_read")
        program = _PROGRAMS.get(self.verb or "")
        kind: Kind = "network_bidirectional" if self.bidirectional else "network"
        return Sample(
            kind="network_latency" if gb_per_s is None else kind,
            source=source,
            destination=destination,
            bytes=size,
            median_gb_per_s=gb_per_s,
            median_us=us,
            tool=SOURCE if program is None else f"ib_{program}_{'lat' if gb_per_s is None else 'bw'}",
            transport=_VERBS.get(self.verb or ""),
            streams=qps,
        )


_UNNAMED_TEST = Test(None)


class _Column(NamedTuple):
    """Which word of a row counts, and its unit in GB/s; None: microseconds."""

    place: int
    unit: float | None


@dataclass(slots=True)
class _Scanned:
    """The tests of one text."""

    report: Report = field(default_factory=Report)
    marks: list[runs.Mark] = field(default_factory=list)
    understood: frozenset[int] = frozenset()
    test: Test = _UNNAMED_TEST
    column: _Column | None = None
    streams: int | None = None
    is_of_one_end: bool = False

    def add(self, number: int, line: str) -> bool:
        """Take one line; False where it is not understood."""
        if title := _TITLE.match(line):
            self._begin(Test(title[1].lower(), title[2] is not None))
        elif rates := _RATES.match(line):
            self._head(_Column(4 if rates[1] else 3, UNITS[rates[2]]))
        elif latencies := _LATENCIES.match(line):
            self._head(_Column(4 if latencies[1] == "t_typical" else 2, None))
        elif _ROW.match(line):
            return self._row(number, line.split())
        elif streams := _STREAMS.match(line):
            self.streams = min(int(streams[1]), _MAX_STREAMS) or None
        elif link := _LINK.match(line):
            self.report.notes[f"{SOURCE} ran over {LINKS[link[1]]}"] = None
        elif command := _COMMAND.search(line):
            verb = _OF_COMMAND.get(command[1], command[1])
            self._begin(Test(verb, _BIDIRECTIONAL.search(command[3]) is not None), is_printed=False)
        elif _EACH_END.match(line):
            self.column, self.is_of_one_end = None, True
        elif _GPU_MEMORY.match(line):
            self.report.notes[f"{SOURCE} used the memory of a GPU at the host of this output"] = None
        elif _ERROR.match(line):
            self.report.fail(SOURCE, re.sub(r"(connect to) \S+", r"\1 the server", line))
        else:
            if device := _DEVICE.search(line):
                self.report.notes[f"{SOURCE} used the network card {device[1]}"] = None
            return _PROSE.match(line) is not None
        return True

    def measured(self) -> list[runs.Mark]:
        """Return the rows."""
        return self.marks

    def read(self, *, origin: str) -> Read:
        """Return the machine, with the lines that were understood."""
        del origin  # nothing in such a text is refused
        return Read(ends.machine(SOURCE, self.report), self.understood)

    def _begin(self, test: Test, *, is_printed: bool = True) -> None:
        """Begin a test: its title is printed, a command line may be without any output."""
        self.test, self.column, self.streams, self.is_of_one_end = test, None, None, False
        self.report.complete = self.report.complete and not is_printed  # until its first row

    def _head(self, column: _Column) -> None:
        if self.is_of_one_end:
            return
        self.column = column
        self.report.complete = False
        if self.test.verb is None:
            self.report.notes[_UNNAMED] = None

    def _row(self, number: int, words: list[str]) -> bool:
        column = self.column
        if column is None or len(words) <= column.place or not 0 < int(words[0]) <= _MAX_BYTES:
            return False
        is_rate = column.unit is not None
        value = positive(words[column.place]) if is_rate else positive(words[column.place], MAX_US)
        if value is None:
            return False
        rate = value * column.unit if column.unit is not None else None
        sample = self.test.sample(
            int(words[0]), gb_per_s=rate, us=None if is_rate else value, qps=self.streams
        )
        self.report.samples.append(sample)
        self.report.complete = True
        of = (sample.kind, sample.transport, sample.bytes, sample.streams, sample.source)
        self.marks.append((number, of))
        return True


def recognise(text: str) -> bool:
    """Return whether the text has a line that only these programs print."""
    return _MARKS.search(text) is not None


def read(text: str, *, origin: str) -> Read:
    """Read the tests of a text, with the numbers of the lines that were understood."""
    return runs.read(text, _scan, SOURCE, origin=origin)


def _scan(text: str, above: _Scanned | None) -> _Scanned:
    """Return the content of one run; one without a title has the test above it."""
    found = _Scanned()
    if above is not None and _TITLE.search(text) is None:
        found.test, found.column = above.test, above.column
    found.understood = understood_of(text, found.add)
    return found
