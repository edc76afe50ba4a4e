"""The public captures, cell by cell against a plain second reading, and matrices that must be refused."""

import re
from pathlib import Path

import pytest

from gputopo.captures.smi import topo_matrix
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine

CAPTURES = Path(__file__).parents[4] / "shared" / "captures" / "topo"
if not CAPTURES.is_dir():
    pytest.skip("the folder of public captures is not beside this checkout", allow_module_level=True)

NO_MATRIX = "windows_geforce-rtx-2080-super_591.86"
INCONSISTENT = "autonomys"
CUT_CELLS = "a100-sxm4-40gb"
FILES = sorted(path for path in CAPTURES.glob("*.txt") if not path.name.startswith((NO_MATRIX, INCONSISTENT)))


def read(start: str) -> Machine:
    (path,) = CAPTURES.glob(f"{start}*.txt")
    return topo_matrix.parse(path.read_text(encoding="utf-8"), origin=path.name)


def reread(text: str) -> tuple[list[str], dict[str, list[str]]]:
    """The devices of the header, and the words behind each row's label, by the plainest means there are."""
    plain = re.sub(r"(?:\x1b|\^\[)\[\d+m", "", text)
    lines = [line.replace("#", " ") for line in plain.splitlines()]
    head = next(line for line in lines if "GPU0" in line)
    devices = re.findall(r"GPU\d+|NIC\d+|mlx\d_\d+", head)
    words = [line.split() for line in lines[lines.index(head) + 1 :]]
    return devices, {
        w[0]: w[1 : 1 + len(devices)] for w in words if w and re.fullmatch(r"GPU\d+|NIC\d+|mlx\d_\d+", w[0])
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_cell_of_a_capture_is_read_as_it_stands(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    machine = topo_matrix.parse(text, origin=path.name)
    devices, rows = reread(text)
    gpus = [device for device in devices if device.startswith("GPU")]
    nics = [d for d in devices if d not in gpus] or [label for label in rows if not label.startswith("GPU")]
    assert [f"GPU{gpu.index}" for gpu in machine.gpus] == gpus
    for a in range(len(gpus)):
        for b in range(a + 1, len(gpus)):
            link = machine.link(a, b)
            assert link is not None
            cell = rows[gpus[a]][b].replace("SOC", "SYS")
            assert (link.hop.value if link.hop else f"NV{link.nvlinks}") == cell
    assert len(machine.links) == len(gpus) * (len(gpus) - 1) // 2
    assert len(machine.nics) == len(nics)
    for position, (nic, label) in enumerate(zip(machine.nics, nics, strict=True)):
        if label in rows:
            others = [(f"gpu:{i}", cell) for i, cell in enumerate(rows[label][: len(gpus)])]
            others += [(f"nic:{i}", cell) for i, cell in enumerate(rows[label][len(gpus) :]) if i != position]
        else:
            others = [(f"gpu:{i}", rows[gpu][len(gpus) + position]) for i, gpu in enumerate(gpus)]
        assert {key: hop.value for key, hop in nic.hops.items()} == {
            k: c.replace("SOC", "SYS") for k, c in others
        }


def test_the_affinities_are_those_of_the_columns() -> None:
    wrapped = read("8gpu-2socket-putty")
    assert [gpu.cpu_affinity for gpu in wrapped.gpus] == ["0-17,36-53"] * 4 + ["18-35,54-71"] * 4
    assert [gpu.numa_node for gpu in wrapped.gpus] == [0] * 4 + [1] * 4
    assert [(n.index, n.cpus) for n in wrapped.host.numa_nodes or ()] == [
        (0, "0-17,36-53"),
        (1, "18-35,54-71"),
    ]
    torn = read("epyc-nps4")
    assert (torn.gpus[0].cpu_affinity, torn.gpus[0].numa_node) == ("48-63,112-127", 3)
    power = read("ibm-ac922")
    assert [node.index for node in power.host.numa_nodes or ()] == [0, 8]
    ragged = read("v100-8gpu")
    assert (ragged.gpus[7].cpu_affinity, ragged.gpus[7].numa_node) == ("24-47,72-95", 1)


@pytest.mark.parametrize("start", ["sglang", "windows_geforce-rtx-2080-super_610.62"])
def test_empty_affinity_columns_stay_empty_and_report_it(start: str) -> None:
    machine = read(start)
    assert all(gpu.cpu_affinity is None and gpu.numa_node is None for gpu in machine.gpus)
    assert machine.missing["gpus[0].cpu_affinity"] == "the CPU Affinity column is empty"
    assert machine.missing["gpus[0].numa_node"] == "the NUMA Affinity column is empty"
    assert machine.host.numa_nodes is None
    assert "host.numa_nodes" in machine.missing


def test_a_capture_without_affinity_columns_reports_it_once() -> None:
    machine = read("4gpu-nv12-nv10")
    assert machine.missing["gpus[*].cpu_affinity"] == "the text has no CPU Affinity column"
    assert machine.missing["links[*].hop"].startswith("where the matrix shows NVLinks")


def test_a_cut_cell_is_unread_and_only_the_other_row_is_believed() -> None:
    machine = read(CUT_CELLS)
    assert [u.text for u in machine.unread] == [f"GPU{i}-NIC7: PH (looks like a cut PHB)" for i in range(8)]
    assert [u.line for u in machine.unread] == list(range(2, 10))
    assert {gpu.cpu_affinity for gpu in machine.gpus} == {"0-115"}
    assert {machine.missing[f"gpus[{i}].numa_node"] for i in range(8)} == {
        "its NUMA affinity is several nodes: 0-3"
    }
    alone = topo_matrix.parse("\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tPH0-9\n", origin="x")
    assert alone.nics[0].hops == {}
    assert "nics[0].hops.gpu:0" in alone.missing
    assert alone.gpus[0].cpu_affinity == "0-9"


def test_a_mangled_core_list_is_unread_and_makes_its_node_doubtful() -> None:
    machine = read("a800-8gpu")
    assert [gpu.cpu_affinity for gpu in machine.gpus[:5]] == [None] * 4 + ["32-63,96-127"]
    assert [u.text for u in machine.unread] == [f"GPU{i} CPU Affinity: -31,64-95" for i in range(4)]
    assert [(n.index, n.cpus) for n in machine.host.numa_nodes or ()] == [(0, None), (1, None)]
    assert "overlap" in machine.missing["host.numa_nodes[1].cpus"]
    assert {nic.name for nic in machine.nics} == {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"}


def test_nics_keep_the_order_of_the_header_and_their_own_names() -> None:
    assert [nic.name for nic in read("dgx1-p100").nics] == ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"]
    assert [nic.name for nic in read("sglang").nics][-1] == "mlx5_16"
    assert read("pod-2gpu").missing["nics[0].name"] == "the text has no NIC legend for it"


def test_the_memory_of_a_grace_gpu_is_a_node_without_cpus() -> None:
    machine = read("aerial-gh200")
    assert [(n.index, n.cpus) for n in machine.host.numa_nodes or ()] == [(0, "0-71"), (1, None)]
    assert "memory of GPU 0" in machine.missing["host.numa_nodes[1].cpus"]


def test_an_authors_remark_that_names_a_hop_is_kept_as_unread() -> None:
    assert [u.text for u in read("az-4x-m60").unread] == ["SOC between all pairs looks a bit suspicious..."]


def test_the_inconsistent_paste_is_refused_with_the_line() -> None:
    with pytest.raises(InputError, match="line 4 is a row of GPU2, which is not in the header"):
        read(INCONSISTENT)


def test_tables_of_peer_access_are_not_taken_for_the_matrix() -> None:
    for path in (CAPTURES.parent / "other").glob("topo-p2p*"):
        assert not topo_matrix.recognise(path.read_text(encoding="utf-8"))


def test_captures_of_other_tools_are_not_recognised() -> None:
    others = [
        p
        for p in CAPTURES.parent.glob("*/*")
        if p.parent != CAPTURES and p.suffix in (".txt", ".xml", ".log")
    ]
    assert others
    assert [p.name for p in others if topo_matrix.recognise(p.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("end", "reported"),
    [("0-1", None), ("0", None), ("0-15", "0-15"), ("0-15\n", "0-15"), ("0-1\n", "0-1"), ("16-31", "16-31")],
)
def test_a_cpu_list_in_whose_middle_the_text_ends_is_not_reported(end: str, reported: str | None) -> None:
    text = f"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-15\nGPU1\tPHB\t X \t{end}"
    machine = topo_matrix.parse(text, origin="x")
    assert (machine.gpus[0].cpu_affinity, machine.gpus[1].cpu_affinity) == ("0-15", reported)
    assert (machine.missing.get("gpus[1].cpu_affinity") == "the text ends in the middle of it") == (
        reported is None
    )
