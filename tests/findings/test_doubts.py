import pytest
from msgspec.structs import replace

from gputopo.findings.doubts import cut_affinities, lacks_nvlinks
from gputopo.values.machine import Hop, Host, Machine
from tests.topology.test_doubts import matrix


def with_affinities(*cpus: str | None) -> Machine:
    machine = matrix(Hop.NODE, [None] * len(cpus))
    gpus = (replace(gpu, cpu_affinity=one) for gpu, one in zip(machine.gpus, cpus, strict=True))
    return replace(machine, gpus=tuple(gpus))


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB"])
def test_a_board_made_for_nvlink_that_shows_none_is_doubted(name: str) -> None:
    assert lacks_nvlinks(matrix(Hop.SYS, [0, 0, 1, 1], name=name)) == (name,)


def test_models_with_bridges_or_without_nvlink_may_show_none() -> None:
    for name in ["NVIDIA GeForce RTX 3090", "Tesla T4", "no such card", None]:
        assert lacks_nvlinks(matrix(Hop.SYS, [0, 0, 1, 1], name=name)) == ()


def test_an_unknown_number_of_nvlinks_is_no_sign_that_there_are_none() -> None:
    machine = matrix(Hop.SYS, [0, 0], name="NVIDIA A100-SXM4-80GB")
    unknown = tuple(replace(link, nvlinks=None) for link in machine.links)
    assert lacks_nvlinks(replace(machine, links=unknown)) == ()


def test_a_few_scattered_cpus_are_a_jobs() -> None:
    for cpus in ["0", "169,171,173", "0,2,4,6,8,10", "3,67"]:
        (found,) = cut_affinities(with_affinities(cpus))
        assert (found.gpu, found.cpus) == (0, cpus)


def test_whole_cores_and_long_lists_are_a_nodes() -> None:
    for cpus in ["0-3", "0-19", "0-9,20-29", "0,2,4,6,8,10,12,14", "56-63,120-127", None]:
        assert cut_affinities(with_affinities(cpus)) == ()


def test_a_gpu_without_cpus_beside_others_with_some_is_far_from_the_jobs_cpus() -> None:
    assert [one.gpu for one in cut_affinities(with_affinities("0-31", None))] == [1]
    assert cut_affinities(with_affinities(None, None)) == ()


def test_a_small_machine_may_have_so_few_cpus() -> None:
    machine = replace(with_affinities("0", "2"), host=Host(logical_cpus=4))
    assert cut_affinities(machine) == ()
