import pytest

from gputopo.captures import read_text
from gputopo.values.errors import InputError
from gputopo.values.machine import Hop
from tests import there
from tests.captures.samples import measured_of as read
from tests.kit.dialects import bandwidthtest, nvbandwidth, p2p

P2P = p2p.head(["GTX 1070"] * 2, [[True] * 2] * 2) + p2p.matrix(
    "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)", [[100.5, 11.5], [12.5, 101.5]]
)
RUN = bandwidthtest.quick("GTX 1070", {"Host to Device": 763.5}, index=1)
NVB = "nvbandwidth Version: v0.8\nDevice 0: GTX 1070\nDevice 1: GTX 1070\n" + nvbandwidth.table(
    "host_to_device_memcpy_ce", "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", [[5.5, 6.5]]
)
TOPO = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPIX\t0-9\nGPU1\tPIX\t X \t0-9\n"


@pytest.mark.parametrize("parts", [(P2P, RUN, NVB), (NVB, RUN, P2P)])
def test_outputs_of_several_programs_in_one_text_are_all_read(parts: tuple[str, ...]) -> None:
    machine, bandwidth = read("\n".join(parts))
    between = {
        (s.source, s.destination): s.median_gb_per_s for s in bandwidth.samples if s.kind == "p2p_direct"
    }
    assert between == {("gpu:0", "gpu:1"): 11.5, ("gpu:1", "gpu:0"): 12.5}
    assert sorted(s.median_gb_per_s or 0 for s in bandwidth.samples if s.kind == "h2d") == [0.7635, 5.5, 6.5]
    assert [gpu.name for gpu in machine.gpus] == ["GTX 1070", "GTX 1070"]
    assert machine.unread == ()
    assert machine.contradictions == ()


def test_a_matrix_of_nvidia_smi_beside_a_bandwidth_test_is_read_too() -> None:
    machine, bandwidth = read(P2P + "\n" + TOPO)
    assert machine.source == "nvidia-smi topo + p2pBandwidthLatencyTest"
    link = there(machine.link(0, 1))
    assert (link.hop, link.p2p_read) == (Hop.PIX, "OK")
    assert len(bandwidth.samples) == 4
    assert machine.unread == ()


BOTH_WAYS = bandwidthtest.quick("GTX 1070", {"Host to Device": 763.5, "Device to Host": 799.1})


@pytest.mark.parametrize(
    ("text", "number", "cell"),
    [(P2P, " 11.50", "-3.00"), (BOTH_WAYS, "763.5", "nan"), (NVB, " 6.50", "1e99"), (P2P, " 11.50", "12,5")],
)
def test_a_number_that_no_copy_has_is_reported_and_not_taken(text: str, number: str, cell: str) -> None:
    _, whole = read(text)
    machine, bandwidth = read(text.replace(number, f" {cell}"))
    assert len(bandwidth.samples) == len(whole.samples) - 1
    assert [cell in line.text for line in machine.unread] == [True]


def test_a_marker_without_any_result_is_refused() -> None:
    with pytest.raises(InputError, match="no result of a bandwidth test found"):
        read_text("$ ./p2pBandwidthLatencyTest\nSegmentation fault\n", origin="test")


def test_of_a_long_log_only_the_first_unread_lines_are_kept() -> None:
    machine, _ = read(P2P + "some line of a log\n" * 500)
    assert len(machine.unread) == 200


def test_a_matrix_in_a_text_that_only_speaks_of_a_bandwidth_test_is_read() -> None:
    machine = read_text(f"Next we ran p2pBandwidthLatencyTest.\n{TOPO}", origin="test")
    assert machine.source == "nvidia-smi topo"
    assert machine.bandwidth is None


@pytest.mark.parametrize("cut", ["26.", "26.3"])
def test_a_number_in_whose_middle_the_text_ends_is_no_result(cut: str) -> None:
    text = (
        " Device 0: A\n Host to Device Bandwidth, 1 Device(s)\n PINNED Memory Transfers\n"
        "   Transfer Size (Bytes)\tBandwidth(GB/s)\n   32000000\t\t\t25.4\n"
        " Device to Host Bandwidth, 1 Device(s)\n PINNED Memory Transfers\n"
        f"   Transfer Size (Bytes)\tBandwidth(GB/s)\n   32000000\t\t\t{cut}"
    )
    machine = read_text(text, origin="x")
    told = {one.kind: one.median_gb_per_s for one in there(machine.bandwidth).copies}
    assert told == ({"h2d": 25.4, "d2h": 26.3} if cut == "26.3" else {"h2d": 25.4})
    assert bool(machine.unread) == (cut != "26.3")


def test_whole_numbers_at_the_end_of_a_table_of_whole_numbers_stay() -> None:
    machine = read_text("   D\\D     0      1\n     0    —    104\n     1   103    105", origin="x")
    assert [one.median_gb_per_s for one in there(machine.bandwidth).copies] == [104, 103, 105]
