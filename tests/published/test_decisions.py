"""What `plan` chooses where others measured several placements: `decisions.csv`."""

from statistics import fmean

import pytest

from gputopo.captures import read_bundled
from gputopo.planner import Request, plan
from gputopo.values.machine import Gpu, Hop, Link, Machine
from tests.published.decisions import RULES, choice_of, kind_of, published_decisions


def test_there_are_forty_decisions_and_in_ten_of_them_nccl_is_not_the_fastest() -> None:
    rows = published_decisions()
    assert len(rows) >= 40
    slower = [one for one in rows if "nccl" in one.speeds and one.loss("nccl") > 0]
    assert len(slower) >= 10
    assert all(one.source.startswith("https://") for one in rows)


def test_the_choice_loses_no_more_than_the_rule() -> None:
    """In a paired comparison: no decision is worse by more than another one is better."""
    apart = [one.loss(choice_of(one)) - one.loss(RULES["the rule"](one)) for one in published_decisions()]
    assert fmean(apart) <= 0


@pytest.mark.parametrize(("gpus", "images_per_sec"), [((0, 1), 1863.78), ((4, 5), 1830.2), ((0, 5), 1572.61)])
def test_the_pair_table_of_7gforce_is_chosen_as_its_owner_measured(
    gpus: tuple[int, ...], images_per_sec: float
) -> None:
    choice = plan(read_bundled("7gforce"), Request(gpus=gpus, model="alexnet")).choice
    assert kind_of(choice) == "spread"
    assert (choice.evidence, choice.images_per_sec) == ("measured", images_per_sec)
    assert "measured with tf_cnn_benchmarks" in choice.reasons[0]


def test_of_all_pairs_of_7gforce_the_fastest_is_chosen_and_never_independent_training() -> None:
    choice = plan(read_bundled("7gforce"), Request(num_gpus=2, model="alexnet")).choice
    assert (choice.gpus, choice.ps_device, choice.images_per_sec) == ((0, 1), "gpu:spread", 1863.78)


def machine(name: str, count: int, *, nvlinks: int = 0, p2p: str = "OK") -> Machine:
    """Return a machine of GPUs that are all as far apart."""
    links = (
        Link(a=a, b=b, hop=Hop.NODE, nvlinks=nvlinks, p2p_read=p2p, p2p_write=p2p)
        for b in range(count)
        for a in range(b)
    )
    gpus = tuple(Gpu(index=index, name=name) for index in range(count))
    return Machine(source="a test", gpus=gpus, links=tuple(links))


@pytest.mark.parametrize("model", ["resnet50", "vgg16"])
@pytest.mark.parametrize(
    ("name", "count", "fields"),
    [
        ("NVIDIA B200", 2, {"nvlinks": 18}),
        ("NVIDIA H100 80GB HBM3", 8, {"nvlinks": 18}),
        ("NVIDIA GeForce RTX 4090", 4, {"p2p": "CNS"}),
        ("NVIDIA GeForce RTX 4090", 8, {"p2p": "CNS"}),
    ],
)
def test_nccl_is_chosen_on_newer_gpus_through_host_memory_without_peer_access(
    model: str, name: str, count: int, fields: dict[str, int | str]
) -> None:
    choice = plan(machine(name, count, **fields), Request(model=model)).choice  # type: ignore[arg-type]
    assert kind_of(choice) == "nccl"
    without = any("no peer access" in reason for reason in choice.reasons)
    assert without is ("p2p" in fields)


def test_gpus_before_volta_without_peer_access_keep_variables_on_the_cpu() -> None:
    assert kind_of(plan(machine("Tesla M60", 2, p2p="CNS"), Request(model="resnet50")).choice) == "cpu"
    assert kind_of(plan(machine("Tesla M60", 2), Request(model="resnet50")).choice) == "nccl"
