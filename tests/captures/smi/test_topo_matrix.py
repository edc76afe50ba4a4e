"""Columns and cells of `nvidia-smi topo -m` that are empty, cut or mangled, in invented matrices."""

import pytest

from gputopo.captures import read_text
from gputopo.values.machine import Machine

HEAD = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"


def read(text: str) -> Machine:
    return read_text(text, origin="x")


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (
            f"{HEAD}GPU0\t X \tNV4\t\t\nGPU1\tNV4\t X \t\t\n",
            {
                "gpus[0].cpu_affinity": "the CPU Affinity column is empty",
                "gpus[0].numa_node": "the NUMA Affinity column is empty",
                "host.numa_nodes": "no GPU lists a single NUMA node",
                "links[*].hop": "if the matrix shows NVLinks, it does not show the PCIe path",
            },
        ),
        (
            "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n",
            {"gpus[*].cpu_affinity": "the text has no CPU Affinity column"},
        ),
        (
            f"{HEAD}GPU0\t X \tPHB\t0-115\t0-3\nGPU1\tPHB\t X \t0-115\t0-3\n",
            {"gpus[0].numa_node": "its NUMA affinity is several nodes: 0-3"},
        ),
        (
            "\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tPIX\t0-9\nNIC0\tPIX\t X \n",
            {"nics[0].name": "the text has no NIC legend for it"},
        ),
        (
            "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-71\t0\t1\n",
            {"host.numa_nodes[1].cpus": "it is the memory of GPU 0, and no GPU lists CPUs of it"},
        ),
    ],
)
def test_what_a_matrix_does_not_show_is_missing_with_the_reason(text: str, missing: dict[str, str]) -> None:
    machine = read(text)
    assert {fact: machine.missing.get(fact) for fact in missing} == missing
    assert machine.unread == ()


def test_the_cpus_of_a_grace_gpu_are_of_the_first_node_that_it_names() -> None:
    (gpu,) = read("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t72-143\t1,19-25\t18\n").gpus
    assert gpu.numa_node == 1


def test_a_cut_cell_and_a_mangled_core_list_are_unread_and_nothing_is_made_of_them() -> None:
    cut = read("\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tPH0-9\n")
    assert (cut.nics[0].hops, cut.gpus[0].cpu_affinity) == ({}, "0-9")
    assert "nics[0].hops.gpu:0" in cut.missing
    assert [one.text for one in cut.unread] == ["GPU0-NIC0: PH (looks like a cut PHB)"]
    mangled = read(f"{HEAD}GPU0\t X \tSYS\t-31,64-95\t0\nGPU1\tSYS\t X \t32-63,96-127\t1\n")
    assert [gpu.cpu_affinity for gpu in mangled.gpus] == [None, "32-63,96-127"]
    assert [(one.line, one.text) for one in mangled.unread] == [(2, "GPU0 CPU Affinity: -31,64-95")]
    assert mangled.missing["host.numa_nodes[0].cpus"] == "none of its GPUs has a readable CPU affinity"


@pytest.mark.parametrize(
    ("end", "reported"),
    [("0-1", None), ("0-15", "0-15"), ("0-1\n", "0-1"), ("16-31", "16-31")],
)
def test_a_cpu_list_in_whose_middle_the_text_ends_is_not_reported(end: str, reported: str | None) -> None:
    machine = read(f"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-15\nGPU1\tPHB\t X \t{end}")
    assert (machine.gpus[0].cpu_affinity, machine.gpus[1].cpu_affinity) == ("0-15", reported)
    cut = machine.missing.get("gpus[1].cpu_affinity") == "the text ends in the middle of it"
    assert cut == (reported is None)
