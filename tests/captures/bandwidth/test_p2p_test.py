import pytest

from gputopo.captures import read_text
from gputopo.values.bandwidth import CopyRate
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine
from tests import there
from tests.kit.dialects import p2p

RATES = [[100.5, 11.25, 12.5], [13.0, 101.5, 14.0], [15.0, 16.0, 102.5]]
ACCESS = [[True, True, False], [True, True, False], [False, False, True]]
NAMES = ["GeForce GTX 1070", "GeForce GTX 1070", "GeForce GTX 1080 Ti"]
ENABLED = "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)"
DISABLED = "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)"


def read(text: str) -> Machine:
    return read_text(text, origin="test")


def samples(text: str) -> tuple[CopyRate, ...]:
    bandwidth = there(read(text).bandwidth)
    return bandwidth.copies


def rates(found: tuple[CopyRate, ...], kind: str) -> dict[tuple[str, str], float | None]:
    return {(s.source, s.destination): s.median_gb_per_s for s in found if s.kind == kind}


def test_where_the_version_is_unknown_the_row_is_the_source_and_a_note_states_it() -> None:
    unknown = there(read(p2p.matrix(DISABLED, RATES)).bandwidth)
    known = there(read(p2p.matrix(DISABLED, RATES) + p2p.matrix(ENABLED, RATES)).bandwidth)
    alone = there(read(p2p.matrix(DISABLED, [[100.5]])).bandwidth)
    assert rates(unknown.copies, "p2p_staged")["gpu:0", "gpu:1"] == 11.25
    assert ["which version" in note for note in unknown.notes] == [True]
    assert not any("which version" in note for note in (*known.notes, *alone.notes))


def test_a_list_and_a_matrix_that_differ_are_a_contradiction_and_no_status() -> None:
    text = p2p.head(NAMES, ACCESS).replace(
        "Device=0 CAN Access Peer Device=1", "Device=0 CANNOT Access Peer Device=1"
    )
    machine = read(text + p2p.matrix(DISABLED, RATES))
    link = there(machine.link(0, 1))
    assert link.p2p_read is None
    assert {c.fact for c in machine.contradictions} == {"links[0-1].p2p_read", "links[0-1].p2p_write"}
    assert "links[0-1].p2p_read" in machine.missing


def test_of_the_newer_latencies_the_gpus_are_taken_and_the_hosts_are_said_to_be_left_out() -> None:
    text = p2p.matrix("P2P=Enabled Latency (P2P Writes) Matrix (us)", RATES, "GPU")
    text += "\n" + p2p.matrix("", [[77.0] * 3] * 3, "CPU")
    machine = read(text)
    assert machine.bandwidth is not None
    assert {s.value for s in machine.bandwidth.samples} == {v for row in RATES for v in row}
    assert any("CPU latencies" in note for note in machine.bandwidth.notes)
    assert machine.unread == ()


def test_gpus_are_numbered_by_address_where_cuda_put_the_fastest_first() -> None:
    text = (
        "Device: 0, Fast, pciBusID: 9, pciDeviceID: 0, pciDomainID:0\n"
        "Device: 1, Slow, pciBusID: 5, pciDeviceID: 0, pciDomainID:0\n"
    ) + p2p.matrix(DISABLED, [[900.0, 1.5], [2.5, 100.0]])
    machine = read(text)
    assert [(g.index, g.cuda_index, g.name) for g in machine.gpus] == [(0, 1, "Slow"), (1, 0, "Fast")]
    assert machine.bandwidth is not None
    assert rates(machine.bandwidth.copies, "p2p_staged") == {
        ("gpu:1", "gpu:0"): 1.5,
        ("gpu:0", "gpu:1"): 2.5,
    }
    assert any("PCI order" in note for note in machine.bandwidth.notes)


def test_a_bare_matrix_faster_than_a_link_is_both_directions_and_a_note_says_so() -> None:
    for scale, kind in ((10, "bidirectional"), (1, "p2p_direct")):
        rows = [[None if a == b else scale * v for b, v in enumerate(r)] for a, r in enumerate(RATES)]
        bandwidth = there(read(p2p.matrix("", rows)).bandwidth)
        assert [s.kind for s in bandwidth.samples] == [kind] * 6
        assert any("lost its heading" in note for note in bandwidth.notes)


def test_lines_of_other_logs_between_the_rows_are_passed_over() -> None:
    logs = ["node:1:2 [0] NCCL INFO Channel 00/64 : 0", "0 7 8", "slurmstepd: error: ***", "1 0 1 1"]
    lines = p2p.matrix(ENABLED, RATES).splitlines()
    mixed = "\n".join(f"{line}\n{log}" for line, log in zip(lines, [*logs, ""], strict=True))
    machine = read(mixed)
    whole = there(read(p2p.matrix(ENABLED, RATES)).bandwidth)
    assert there(machine.bandwidth).samples == whole.samples
    assert [line.text for line in machine.unread] == logs


def test_a_device_reported_twice_and_differently_is_refused() -> None:
    with pytest.raises(InputError, match=r"device 0 twice with different values \(line 2\)"):
        read(
            "Device: 0, A, pciBusID: 5, pciDeviceID: 0\nDevice: 0, B, pciBusID: 5, pciDeviceID: 0\n"
            "P2P=Enabled\n"
        )


ERROR = "Cuda failure p2pBandwidthLatencyTest.cu:605: 'no CUDA-capable device is detected'\n"
START = "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n"


def test_of_a_text_that_holds_nothing_but_an_error_that_is_all_that_is_told() -> None:
    machine = read(START + ERROR)
    told = there(machine.bandwidth)
    assert [one.what for one in told.not_measured] == ["p2pBandwidthLatencyTest: the whole run"]
    assert "'no CUDA-capable device is detected'" in told.not_measured[0].reason
    assert (*machine.gpus, *told.samples, *machine.unread) == ()
    assert not told.complete


def test_a_matrix_of_p2p_reads_is_of_copies_that_the_row_fetches() -> None:
    found = samples(p2p.matrix("Unidirectional P2P=Enabled Bandwidth (P2P Reads) Matrix (GB/s)", RATES))
    assert rates(found, "p2p_direct")["gpu:1", "gpu:0"] == 11.25
    assert {sample.method for sample in found if sample.kind == "p2p_direct"} == {"copy_engine_read"}


@pytest.mark.parametrize("cut", ["    2 ", "    2  15.00  16."])
def test_a_capture_that_stops_within_a_matrix_ends_early(cut: str) -> None:
    whole = p2p.matrix(DISABLED, RATES)
    last = whole.splitlines()[-1]
    for text, complete in ((whole, True), (whole.replace(last, cut).rstrip("\n"), False)):
        told = there(read(text).bandwidth)
        assert told.complete == complete
