"""NVLinks and CPU affinities that a virtual machine or a job hides."""

import pytest
from msgspec.structs import replace

from gputopo.findings import doubtful_topology, find
from gputopo.values.finding import Finding
from gputopo.values.machine import Hop, Machine
from tests.topology.test_doubts import matrix


def with_affinities(*cpus: str | None) -> Machine:
    machine = matrix(Hop.NODE, [None] * len(cpus))
    gpus = (replace(gpu, cpu_affinity=text) for gpu, text in zip(machine.gpus, cpus, strict=True))
    return replace(machine, gpus=tuple(gpus))


def cut_affinities(machine: Machine) -> list[Finding]:
    return [finding for finding in find(machine) if finding.id == "numa.affinity_cut"]


def models_without_nvlinks(machine: Machine) -> list[str]:
    """The models of which the machine should have NVLinks, but shows none."""
    return [
        finding.evidence["model"] for finding in doubtful_topology(machine) if "model" in finding.evidence
    ]


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB"])
def test_a_board_made_for_nvlink_that_shows_none_is_doubted(name: str) -> None:
    assert models_without_nvlinks(matrix(Hop.SYS, [0, 0, 1, 1], name=name)) == [name]


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 3090", "Tesla T4", "no such card", None])
def test_models_with_bridges_or_without_nvlink_may_show_none(name: str | None) -> None:
    assert models_without_nvlinks(matrix(Hop.SYS, [0, 0, 1, 1], name=name)) == []


@pytest.mark.parametrize("cpus", ["0", "169,171,173", "0,2,4,6,8,10", "3,67"])
def test_a_few_scattered_cpus_are_a_jobs(cpus: str) -> None:
    (finding,) = cut_affinities(with_affinities(cpus))
    assert finding.evidence == {"cpu_affinity": {"0": cpus}}


@pytest.mark.parametrize("cpus", ["0-3", "0-19", "0-9,20-29", "0,2,4,6,8,10,12,14", "56-63,120-127", None])
def test_whole_cores_and_long_lists_are_a_nodes(cpus: str | None) -> None:
    assert cut_affinities(with_affinities(cpus)) == []


def test_a_gpu_without_cpus_beside_others_with_some_is_far_from_the_jobs_cpus() -> None:
    (finding,) = cut_affinities(with_affinities("0-31", None))
    assert finding.evidence == {"cpu_affinity": {"1": None}}
    assert cut_affinities(with_affinities(None, None)) == []
