"""The tests of nvbandwidth 0.2 to 0.10, and the meaning of each number in their matrices.

The sending GPU is known from the descriptions of the tests (`nvbandwidth -l`), not from the arrows in the
headings, which show the side that starts the copy: in a read test the row's GPU fetches from the column's
GPU, in a write test it sends to it. The bidirectional tests time one direction while the other runs too, so
those numbers are one-way numbers `with_reverse`. Since 0.6 both directions between GPUs are reported, and
their total is `bidirectional`; up to 0.5, kernel copies between GPUs have only the total. `all_to_host` and
`host_to_all` run on all GPUs at once. `device_local_copy` counts copied bytes once; gputopo counts them read
and written, which is twice that. Host memory is page-locked in all tests. Tests on several nodes, of TMA
copies and of local kernels (0.10) are not read, and are reported as not read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal, NamedTuple

from gputopo.captures import matching
from gputopo.captures.bandwidth import texts
from gputopo.captures.bandwidth.texts import MAX_US, Results, positive
from gputopo.captures.matching import ListedGpu
from gputopo.values.bandwidth import Copied, CopiedKind, CopyLatency, CopyRate, Failure, Method
from gputopo.values.ends import ALL_GPUS, HOST, End
from gputopo.values.machine import Driver, Machine

SOURCE = "nvbandwidth"

Part = Literal["1", "2", "total"]  # of a bidirectional test between GPUs since 0.6

_NS_PER_US = 1000.0
_LOCAL_NOTE = (
    f"{SOURCE}'s device_local_copy counts each copied byte once; here each is counted as read and written"
)
_ARROW_NOTE = (
    f"{SOURCE}'s tests between GPUs: in a read test the column's GPU is the source and the row's fetches, "
    "in a write test the row's GPU is the source"
)
_PEER_LATENCY_NOTE = (
    f"{SOURCE} before 0.8 gives the latency to the host as device_to_device_latency_sm (its changelog)"
)
_CUDA_ERROR = re.compile(r"\b(CUDA_ERROR_[A-Z_]{3,60}|cudaError[A-Za-z]{3,60})\b")
# Messages before it exits (its error_handling.h) or aborts. After other errors it continues.
_ENDS_RUN = re.compile(
    r"\[(?:CUDA_ERROR_|cudaError)|NVML_ERROR|ASSERT in expression|Invalid value when checking the pattern"
)
_WRONG_DATA = re.compile(
    r"invalid value when checking the pattern|(?:memcmp.{0,20}|pattern )mismatch|mismatched elements", re.I
)

_ROW, _COLUMN = End("the row's GPU"), End("the column's GPU")
# Source and destination of each test; `all` in a name: all GPUs at once.
_TESTS: tuple[tuple[re.Pattern[str], tuple[CopiedKind, End, End]], ...] = (
    (re.compile("host_device_latency_sm"), ("latency", HOST, _COLUMN)),
    (re.compile("device_to_device_latency_sm"), ("latency", _COLUMN, _ROW)),
    (re.compile("device_local_copy"), ("d2d_local", _COLUMN, _COLUMN)),
    (re.compile("host_to_(?:device|all)(?:_bidirectional)?_memcpy_(?:ce|sm)"), ("h2d", HOST, _COLUMN)),
    (re.compile("(?:device|all)_to_host(?:_bidirectional)?_memcpy_(?:ce|sm)"), ("d2h", _COLUMN, HOST)),
    (re.compile("(?:all_to_one_write|one_to_all_read)_(?:ce|sm)"), ("p2p_direct", ALL_GPUS, _COLUMN)),
    (re.compile("(?:all_to_one_read|one_to_all_write)_(?:ce|sm)"), ("p2p_direct", _COLUMN, ALL_GPUS)),
    (re.compile("device_to_device(?:_bidirectional)?_memcpy_read_(?:ce|sm)"), ("p2p_direct", _COLUMN, _ROW)),
    (re.compile("device_to_device(?:_bidirectional)?_memcpy_write_(?:ce|sm)"), ("p2p_direct", _ROW, _COLUMN)),
)


class NvbandwidthTest(NamedTuple):
    """A test: the kind of its numbers, and the ends that it copies between."""

    name: str
    kind: CopiedKind
    source: End
    destination: End

    @property
    def is_of_pairs(self) -> bool:
        """Whether each number is for two GPUs."""
        return _ROW in (self.source, self.destination)

    @property
    def is_bidirectional(self) -> bool:
        """Whether both directions are copied at once."""
        return "_bidirectional" in self.name

    @property
    def method(self) -> Method:
        """How the test moves bytes. If one side is host memory, its kernels run on the GPU."""
        if not self.name.endswith("_sm"):
            return "copy_engine_read" if "_read_" in self.name else "copy_engine"
        reads = self.kind == "latency" or "_read_" in self.name or self.name.startswith("host_to")
        return "kernel_read" if reads else "kernel_write"


def named_test(name: str) -> NvbandwidthTest | None:
    """Return a test on one machine by its name, or None for any other test."""
    return next(
        (NvbandwidthTest(name, *ends) for form, ends in _TESTS if form.fullmatch(name)),
        None,
    )


@dataclass(slots=True)
class NvbandwidthReport(Results):
    """The content of one output. GPUs have CUDA's numbers."""

    devices: dict[int, ListedGpu] = field(default_factory=dict)
    driver: str | None = None
    cuda: str | None = None
    version: str | None = None
    bytes: int | None = None
    source: str = SOURCE
    peers: dict[tuple[int, int], bool] = field(default_factory=dict)  # low number first
    columns: set[int] = field(default_factory=set)

    def add(
        self, name: str, part: Part | None, columns: Sequence[int], rows: Mapping[int, Sequence[str]]
    ) -> list[tuple[int, str]]:
        """Add a matrix; return row and word of cells that are not measurements (unknown test: all)."""
        test = named_test(name)
        if test is None:
            reason = "this test is not one that gputopo reads"
            if name.startswith("multinode_"):
                reason = "its GPUs may be on several hosts; on one host, run nvbandwidth without mpirun"
            self.skip(f"{SOURCE} {name}", reason)
            return [(index, " ".join(words)) for index, words in rows.items()]
        strange: list[tuple[int, str]] = []
        absent = 0
        limit = MAX_US * _NS_PER_US if test.kind == "latency" else texts.MAX_GB_PER_S
        self.columns.update(columns, rows if test.is_of_pairs else ())
        for index, words in rows.items():
            for column, word in zip(columns, words, strict=True):
                value = positive(word, limit)
                none = texts.is_empty(word) or texts.is_zero(word)
                own = test.is_of_pairs and index == column
                if value is not None and not own:
                    self.samples.append(self._sample(test, part, index, column, value))
                elif not none:
                    strange.append((index, word))
                else:
                    absent += not own
                if test.is_of_pairs and not own and (value is not None or none):
                    self.peers.setdefault((min(index, column), max(index, column)), value is not None)
        if absent and part in (None, "total"):
            reason = "no peer access between these GPUs" if test.is_of_pairs else "the tool gives N/A"
            self.skip(f"{SOURCE} {name}: {absent} of its numbers", reason)
        return strange

    def waive(self, name: str | None, message: str = "") -> None:
        """Add a test that the tool skipped."""
        test = named_test(name) if name else None
        pairs = test is not None and (test.is_of_pairs or ALL_GPUS in (test.source, test.destination))
        no_peers = "no two GPUs can access each other" if pairs else "no reason reported"
        what = f"{SOURCE} {name}" if name else f"a test that {SOURCE}'s text does not name"
        self.skip(what, f"waived: {message.strip(' .:') or no_peers}")
        if test is not None and test.is_of_pairs and test.kind != "latency":
            for pair in combinations(sorted(self.devices), 2):
                self.peers.setdefault(pair, False)

    def fail(self, name: str | None, message: str) -> None:
        """Add a test that ended in an error; CUDA's error or wrong data in the message make it a failure."""
        self.complete = _ENDS_RUN.search(message) is None
        message = message.strip()[:300]
        error = _CUDA_ERROR.search(message)
        reason = error[1] if error else "WRONG_DATA" if _WRONG_DATA.search(message) else None
        test = named_test(name) if name else None
        if test is None or reason is None:
            self.skip(f"{SOURCE} {name}" if name else SOURCE, message or "failed without a message")
            return
        ends = [HOST if end == HOST else ALL_GPUS for end in (test.source, test.destination)]
        says = f"{test.name}: {message}"
        failure = Failure(
            kind=test.kind, source=ends[0], destination=ends[1], reason=reason, says=says, method=test.method
        )
        self.failures[failure] = None

    def _sample(
        self, test: NvbandwidthTest, part: Part | None, index: int, column: int, value: float
    ) -> Copied:
        places = {_ROW: End.of_gpus(index), _COLUMN: End.of_gpus(column)}
        there = places[_COLUMN]
        source, destination = (places.get(end, end) for end in (test.source, test.destination))
        if test.kind == "latency":
            old = self.version is not None and tuple(map(int, self.version.split("."))) < (0, 8)
            if test.is_of_pairs and old:
                self.notes[_PEER_LATENCY_NOTE] = None
            return CopyLatency(
                source=source,
                destination=destination,
                pinned=None if test.is_of_pairs else True,
                method="kernel_read",  # the destination follows pointers in the source's memory
                path="direct" if test.is_of_pairs else None,
                median_us=float(f"{value / _NS_PER_US:.12g}"),
            )
        kind, path, reverse = test.kind, None, test.is_bidirectional
        group: str | None = f"{test.name} {there}"
        if test.kind == "d2d_local":
            self.notes[_LOCAL_NOTE] = None
            value, group = 2 * value, None
        elif test.is_of_pairs:
            self.notes[_ARROW_NOTE] = None
            group = f"{test.name} {places[_ROW]} {there}" if reverse else None
            if part == "total" or (part is None and reverse and test.name.endswith("_sm")):  # up to 0.5
                kind, path, reverse, group = "bidirectional", "direct", False, None
                source, destination = places[_ROW], there
            elif part is not None:  # in read and write tests the first direction starts at the column's GPU
                source, destination = places.values() if part == "2" else reversed(places.values())
        elif kind != "p2p_direct":
            group = test.name if "all" in test.name else group if reverse else None
        return CopyRate(
            kind=kind,
            source=source,
            destination=destination,
            bytes=self.bytes,
            pinned=True if kind in ("h2d", "d2h") else None,
            path="direct" if path else None,
            method=test.method,
            group=group,
            with_reverse=reverse,
            median_gb_per_s=value,
        )

    def machine(self) -> Machine:
        """Return the machine, with its GPUs in PCI order if their addresses are known."""
        listed = {i: self.devices.get(i, ListedGpu()) for i in sorted(self.columns | set(self.devices))}
        gpus, index_of = matching.gpus_in_pci_order(listed)
        self.notes |= texts.cuda_order_note(SOURCE, index_of)
        peers = {
            (index_of[a], index_of[b]): {can} for (a, b), can in self.peers.items() if {a, b} <= set(index_of)
        }
        bandwidth = self.bandwidth(driver=self.driver, cuda=self.cuda)
        return Machine(
            source=SOURCE,
            driver=Driver(version=self.driver, cuda_version=self.cuda),
            gpus=gpus,
            links=texts.access_links(peers, SOURCE)[0],
            bandwidth=matching.renumbered_bandwidth(bandwidth, index_of),
        )
