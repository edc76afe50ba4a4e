"""Text of nccl-tests: every version is read back; logs, marks, excerpts; damage."""

import re
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.captures import read_text
from gputopo.findings import find_bandwidth
from gputopo.values.bandwidth import Bandwidth, CollectiveRate, Sample
from gputopo.values.ends import HOSTS
from gputopo.values.errors import InputError
from tests import there
from tests.captures.samples import in_turn
from tests.captures.samples import measured_of as read
from tests.kit.dialects import nccl_tests
from tests.kit.dialects.nccl_tests import PROGRAMS, Written

seeds = st.integers(0, 2**32)


def without_log(samples: tuple[Sample, ...]) -> list[str]:
    return sorted(repr(msgspec.structs.replace(one, nccl=())) for one in samples)


def check(written: Written, text: str) -> Bandwidth:
    machine, bandwidth = read(text)
    expected = there(written.machine.bandwidth)
    assert machine.gpus == written.machine.gpus
    assert machine.unread == ()
    assert without_log(bandwidth.samples.of(CollectiveRate)) == without_log(
        expected.samples.of(CollectiveRate)
    )
    assert set(bandwidth.failures) == set(expected.failures)
    assert bandwidth.complete
    return bandwidth


@pytest.mark.parametrize(("per_iteration", "program"), in_turn([False, True], PROGRAMS))
def test_each_program_is_read_back(per_iteration: bool, program: str) -> None:
    @settings(max_examples=1)
    @given(seeds)
    def run(seed: int) -> None:
        written = nccl_tests.measure(Random(seed), program)
        check(written, nccl_tests.text(written, per_iteration=per_iteration))

    run()


@settings(max_examples=1)
@given(seeds)
def test_ranks_on_several_hosts_are_of_no_machine(seed: int) -> None:
    written = nccl_tests.measure(Random(seed), "all_reduce", hosts=3)
    bandwidth = check(written, nccl_tests.text(written))
    assert {one.source for one in bandwidth.samples} == {HOSTS}
    assert any("3 hosts with" in note for note in bandwidth.notes)


def test_the_columns_of_2019_are_read() -> None:
    rates = "  2012.4    8.34   14.59"
    text = (
        "$ ./build/all_reduce_perf -g 8\n# nThread 1 nGpus 8 minBytes 16777216 maxBytes 16777216\n"
        + "".join(f"#   Rank  {n} Pid   {n} on box device  {n} [0x{n:02x}] Tesla V100\n" for n in range(8))
        + "#       size         count    type   redop     time   algbw   busbw  error\n"
        f"    16777216       4194304   float     sum {rates}  2e-07 {rates}  2e-07\n"
        "# Avg bus bandwidth    : 14.59\n"
    )
    machine, bandwidth = read(text)
    assert [(one.bus_gb_per_s, one.ranks) for one in bandwidth.samples.of(CollectiveRate)] == [(14.59, 8)] * 2
    assert ([gpu.name for gpu in machine.gpus], machine.unread) == (["Tesla V100"] * 8, ())


def all_reduce(seed: int = 1) -> tuple[Written, str]:
    written = nccl_tests.measure(Random(seed), "all_reduce")
    return written, nccl_tests.text(written)


@pytest.mark.parametrize("mark", ["0:", "nid001 0: "])
def test_marks_before_the_lines_are_no_part_of_them(mark: str) -> None:
    written, text = all_reduce()
    check(written, "".join(mark + line for line in text.splitlines(keepends=True)))


def test_a_launcher_may_mark_each_write_within_a_row() -> None:
    mark = "[1,0]<stdout>:"
    written, text = all_reduce()
    marked = [re.sub(r"(?<=-1)  |(?<=  0)  (?=.)", f"{mark}  ", line) for line in text.splitlines()]
    assert any(f"-1{mark}" in line and f"0{mark}" in line for line in marked)
    check(written, "".join(f"{mark}{line}\n" for line in marked))


def test_times_of_ten_seconds_and_more_are_printed_with_two_digits() -> None:
    row = "17179869184  4294967296  float  sum  -1  1.6e+07  1.05  1.57  0  1.8e+07  0.98  1.47  0"
    _, bandwidth = read(row)
    assert [(one.kind, one.median_gb_per_s) for one in bandwidth.samples.of(CollectiveRate)] == [
        ("allreduce", 1.05),
        ("allreduce", 0.98),
    ]
    with pytest.raises(InputError, match="no result"):  # 9 % off is no rounding
        read(row.replace("1.05  1.57", "1.15  1.72"))


def test_a_list_of_ranks_that_is_cut_names_no_gpu() -> None:
    _, text = all_reduce()
    lines = [line for line in text.splitlines() if not re.match(r"#  Rank  [23] ", line)]
    lines.insert(next(n for n, line in enumerate(lines) if "Rank  1" in line) + 1, "#  ...")
    machine, bandwidth = read("\n".join(lines))
    assert machine.gpus == ()
    assert {one.source for one in bandwidth.samples} == {"gpus"}
    assert {one.ranks for one in bandwidth.samples.of(CollectiveRate)} == {4}


def test_lines_of_nccl_stand_among_the_rows() -> None:
    written, text = all_reduce()
    ranks = len(written.machine.gpus)
    info = [f"[1,{n}]<stdout>:node0:{n}:{n} [{n}] NCCL INFO " for n in range(ranks)]
    log = [
        f"{info[n]}Channel {c:02}/0 : {n}[{n}] -> 1[1] via SHM/direct"
        for n in range(ranks)
        for c in range(30)
    ]
    log += [
        "[1,0]<stdout>:NCCL version 2.28.7+cuda12.8",
        f"{info[0]}NCCL_P2P_DISABLE set by environment to 1.",
        f"{info[0]}24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels",
    ]
    lines = [f"[1,0]<stdout>:{line}" for line in text.splitlines()]
    lines[12:12] = log
    bandwidth = check(written, "\n".join(lines))
    assert bandwidth.samples.of(CollectiveRate)[0].nccl == ("SHM", "NCCL_P2P_DISABLE=1", "no NVLS")
    assert any("NCCL 2.28.7 (CUDA 12.8)" in note for note in bandwidth.notes)


@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        (
            ("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB ib0:10.0.0.7<0>",
             "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA"),
            ("card mlx5_0", "card mlx5_3", "NET", "NET/IB", "GDRDMA"),
        ),
        (
            ("Channel 03/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/2/GDRDMA/Shared",),
            ("NET", "NET/AWS Libfabric", "GDRDMA"),
        ),
    ],
)  # fmt: skip
def test_the_log_shows_by_which_cards_and_how_hosts_are_joined(
    lines: tuple[str, ...], facts: tuple[str, ...]
) -> None:
    written = nccl_tests.measure(Random(3), "all_reduce", hosts=2)
    text = nccl_tests.text(written)
    log = "\n".join(f"n1:71:99 [0] NCCL INFO {line}" for line in lines)
    bandwidth = check(written, f"{log}\n{text}")
    assert {one.nccl for one in bandwidth.samples.of(CollectiveRate)} == {facts}
    assert {one.hosts for one in bandwidth.samples.of(CollectiveRate)} == {2}


def test_rows_may_be_separated_otherwise() -> None:
    written, text = all_reduce()
    rows = [re.sub(r" +", " | ", line.strip()) for line in text.splitlines() if re.match(r" +\d", line)]
    _, bandwidth = read("\n".join(rows), "all_reduce.csv")
    assert {(one.bytes, one.bus_gb_per_s) for one in bandwidth.samples.of(CollectiveRate)} == {
        (one.bytes, one.bus_gb_per_s)
        for one in (written.machine.bandwidth or Bandwidth(source="")).samples.of(CollectiveRate)
    }
    assert {one.ranks for one in bandwidth.samples.of(CollectiveRate)} <= {written.ranks, None}


def test_an_unknown_operation_is_not_measured() -> None:
    row = " 1073741824  16777216  float  3500.0  306.78  268.43  0e+00  3500.0  306.78  268.43  0e+00"
    _, bandwidth = read(row)
    assert not bandwidth.samples
    assert "unknown operation" in bandwidth.not_measured[0].what
    for mention in (
        ("h100-all_gather.log", row),
        ("log", f"kubectl exec it -- run_nccl_tests.sh -t all_gather\n{row}"),
    ):
        _, bandwidth = read(mention[1], mention[0])
        assert {one.kind for one in bandwidth.samples} == {"allgather"}


@pytest.mark.parametrize(
    ("columns", "ratio", "in_place", "kind"),
    [
        ("sum  -1", 1.75, "0", "allreduce"),
        ("sum  -1", 0.875, "0", "reduce_scatter"),
        ("sum  3", 1, "0", "reduce"),
        ("none  3", 1, "0", "broadcast"),
        ("none  -1", 0.875, "N/A", "alltoall"),
        ("none  -1", 1, "N/A", "alltoall"),  # of so many ranks that (n - 1) / n is printed as 1
        ("sum  -1", 1, "N/A", "sendrecv"),
    ],
)
def test_rows_alone_show_their_operation(columns: str, ratio: float, in_place: str, kind: str) -> None:
    rates = f"5000.00  214.75  {214.748 * ratio:.2f}"
    _, bandwidth = read(f" 1073741824  268435456  float  {columns}  {rates}  0  {rates}  {in_place}\n")
    assert {one.kind for one in bandwidth.samples} == {kind}
    assert {one.ranks for one in bandwidth.samples.of(CollectiveRate)} == {None if ratio == 1 else 8}


def test_runs_of_several_machines_are_of_none() -> None:
    _, text = all_reduce()
    machine, bandwidth = read(text + text.replace("node0", "node7"))
    assert machine.gpus == ()
    assert {(one.source, one.hosts) for one in bandwidth.samples.of(CollectiveRate)} == {(HOSTS, 1)}
    assert any("of 2 machines" in note for note in bandwidth.notes)


def test_a_failure_is_of_the_operation() -> None:
    _, text = all_reduce()
    cut = text.split("# Out of bounds")[0]
    cut += "node0: Test NCCL failure common.cu:303 'unhandled cuda error / Cuda failure 'out of memory''\n"
    cut += " .. node0 pid 1000: Test failure common.cu:401\n"
    machine, bandwidth = read(cut)
    assert machine.unread == ()
    assert not bandwidth.complete
    failure = bandwidth.failures[-1]
    assert (failure.kind, failure.reason) == ("allreduce", "NCCL_ERROR")
    assert "out of memory" in failure.says
    assert "node0" not in failure.says


def test_amd_gpus_are_refused() -> None:
    _, text = all_reduce()
    with pytest.raises(InputError, match="AMD"):
        read(re.sub(r"\] (NVIDIA|Tesla) .*", "] AMD Instinct MI300X", text))


def test_rows_that_contradict_themselves_are_not_understood() -> None:
    row = " 1073741824  268435456  float  sum  -1  3500.0  306.78  536.86  0  3500.0  36.78  536.86  0"
    with pytest.raises(InputError):
        read(row)


@pytest.mark.parametrize(("mixed", "gpus"), [(0, 1), (1, 2)])
def test_processes_that_did_not_meet_are_separate_runs_and_no_measurement(mixed: int, gpus: int) -> None:
    rates = {1: "1217.94    0.00", 2: "1217.94  1217.94"}[gpus]

    def of_host(name: str) -> list[str]:
        return [
            f"# nThread 1 nGpus {gpus} minBytes 134217728 maxBytes 134217728 step: 2(factor)",
            *(
                f"#  Rank  {n} Group  0 Pid     71 on      {name} device  {n} [0x{n}f] NVIDIA H100 80GB HBM3"
                for n in range(gpus)
            ),
            "#       size         count      type   redop    root     time   algbw   busbw #wrong",
            f"   134217728      33554432     float     sum      -1    110.2  {rates}      0",
            "# Avg bus bandwidth    : 0",
        ]

    first, second = of_host("node0"), of_host("node1")
    lines = [*first, *second]
    if mixed:  # so many lines of each in turn
        blocks = [each[n : n + mixed] for n in range(0, len(first), mixed) for each in (first, second)]
        lines = [line for block in blocks for line in block]
    text = "\n".join(lines)
    machine = read_text(text, origin="log")
    bandwidth = there(machine.bandwidth)
    assert not bandwidth.samples
    (failure,) = bandwidth.failures
    assert (failure.kind, failure.reason) == ("allreduce", "SEPARATE_RUNS")
    assert failure.says.startswith(f"2 separate runs of {'one GPU' if gpus == 1 else '2 GPUs'} each")
    (finding,) = find_bandwidth(machine)
    assert finding.id == "collectives.separate_runs"
    assert "MPI=1" in str(finding.remedy)
