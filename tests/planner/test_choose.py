import msgspec
import pytest

from gputopo.planner import Request, plan, plan_environment
from gputopo.values.errors import NoPlanError
from gputopo.values.machine import Gpu, Hop, Link, Machine
from gputopo.values.run.plan import Plan
from gputopo.values.schema import decode, encode
from tests.matrices import DGX1_V100, SEVEN, changed, machine_of


def says(found: Plan, words: str) -> bool:
    return any(words in reason for reason in found.choice.reasons)


def test_two_gpus_of_a_pix_island_are_chosen_and_nothing_is_predicted_of_unknown_ones() -> None:
    found = plan(machine_of(SEVEN), Request(num_gpus=2, prefer_pix=True, model="alexnet"))
    assert found.choice.gpus == (0, 1)
    assert found.model == "alexnet"
    assert (found.prediction, found.choice.evidence) == (None, "rule")
    assert says(found, "nothing predicted: the model of GPU 0 is unknown")
    assert says(found, "GPUs 0 and 1 are PIX apart")
    # PIX pairs: comb(3, 2) + comb(4, 2) = 3 + 6 = 9 of comb(7, 2) = 21.
    assert says(found, "best of 21 sets of 2 GPUs")
    assert says(found, "--prefer-pix is met")
    assert found.refused == ()


def test_candidates_are_listed_best_first_and_sets_that_are_alike_once() -> None:
    found = plan(machine_of(SEVEN), Request(num_gpus=2))
    # {0,1,2} alike and {3,4,5,6} alike: a pair within the first, within the second, or across.
    assert [candidate.gpus for candidate in found.candidates] == [(0, 1), (3, 4), (0, 3)]
    assert found.candidates[0] == found.choice
    assert {candidate.all_reduce for candidate in found.candidates} == {"nccl"}
    assert any("represents 12 equivalent sets" in reason for reason in found.candidates[2].reasons)
    assert len(plan(machine_of(SEVEN), Request(num_gpus=2), keep=1).candidates) == 1


def test_nvlinks_come_before_pcie_and_more_links_before_fewer() -> None:
    # NV2 pairs of the V100 cube mesh: 0-3, 0-4, 1-2, 1-5, 2-3, 4-7, 5-6, 6-7: eight. The lowest is 0-3.
    found = plan(machine_of(DGX1_V100), Request(num_gpus=2, prefer_pix=True))
    assert found.choice.gpus == (0, 3)
    assert (found.choice.variable_update, found.choice.all_reduce) == ("replicated", "nccl")
    assert says(found, "by rule: a copy of the variables on each GPU")
    asked = plan(machine_of(DGX1_V100), Request(num_gpus=2, prefer_pix=True, ps="cpu")).choice
    assert (asked.variable_update, asked.ps_device, asked.all_reduce) == ("parameter_server", "cpu", None)
    assert says(found, "connected by 2 NVLinks")
    assert says(found, "--prefer-pix is met")


def test_without_a_number_prefer_pix_takes_all_where_there_is_no_island() -> None:
    found = plan(machine_of("X SYS\nSYS X"), Request(prefer_pix=True))
    assert found.choice.gpus == (0, 1)
    assert found.choice.all_reduce == "nccl"
    assert says(found, "--prefer-pix has no effect")
    assert [refusal.gpus for refusal in found.refused] == [None]


def test_a_request_for_too_large_an_island_names_the_largest_and_gives_the_best() -> None:
    found = plan(machine_of(SEVEN), Request(num_gpus=5, prefer_pix=True))
    assert found.choice.gpus == (0, 3, 4, 5, 6)
    wish = found.refused[0].reason
    assert wish.startswith("--prefer-pix cannot be met with 5 GPUs")
    assert "largest PIX island has 4 (GPUs 3, 4, 5 and 6)" in wish
    assert wish in found.choice.reasons


def test_a_single_gpu_holds_its_variables() -> None:
    found = plan(machine_of(SEVEN), Request(num_gpus=1, prefer_pix=True, exclude=(0,)))
    assert found.choice.gpus == (1,)
    assert found.choice.ps_device == "gpu:1"
    assert says(found, "has no effect")


def test_named_gpus_are_taken_as_they_are_in_tower_order() -> None:
    found = plan(machine_of(SEVEN), Request(gpus=(4, 0)))
    assert found.choice.gpus == (4, 0)
    assert found.environment["CUDA_VISIBLE_DEVICES"] == "4,0"
    assert len(found.candidates) == 1


def test_named_gpus_that_are_apart_do_not_meet_the_request() -> None:
    found = plan(machine_of(SEVEN), Request(gpus=(0, 3), prefer_pix=True))
    assert found.choice.gpus == (0, 3)
    assert says(found, "the GPUs in --gpus are not in one PIX island")


def test_excluded_gpus_are_not_chosen_and_are_reported() -> None:
    found = plan(machine_of(SEVEN), Request(num_gpus=3, exclude=(1, 4, 5)))
    # Left: 0, 2 | 3, 6. No three are in one island; {0,2,3} and the others cross twice: the lowest.
    assert found.choice.gpus == (0, 2, 3)
    assert found.refused[0].gpus == (1, 4, 5)
    assert "excluded" in found.refused[0].reason


def test_gpu_numbers_with_gaps_are_kept() -> None:
    machine = Machine(
        source="a test",
        gpus=(Gpu(index=2), Gpu(index=5), Gpu(index=7)),
        links=(Link(a=2, b=5, hop=Hop.SYS), Link(a=5, b=7, hop=Hop.PIX)),
    )
    assert plan(machine, Request(num_gpus=2, prefer_pix=True)).choice.gpus == (5, 7)


def test_mixed_kinds_of_gpus_are_reported() -> None:
    machine = changed(changed(machine_of(SEVEN), 0, name="GTX 1070"), 1, name="GTX 1080 Ti")
    assert says(plan(machine, Request(num_gpus=2)), "GPU 0: GTX 1070, GPU 1: GTX 1080 Ti")


def test_the_gpu_that_is_to_hold_the_variables_is_in_every_set() -> None:
    found = plan(machine_of(SEVEN), Request(num_gpus=2, ps="gpu:5", prefer_pix=True))
    assert found.choice.gpus == (3, 5)
    assert found.choice.ps_device == "gpu:5"
    assert all(5 in candidate.gpus for candidate in found.candidates)
    # 5 with any of six others; three of them are PIX.
    assert says(found, "best of 6 sets of 2 GPUs")
    assert plan(machine_of(SEVEN), Request(ps="gpu:1", prefer_pix=True)).choice.gpus == (0, 1, 2)


def test_a_plan_reads_back_from_its_json() -> None:
    found = plan(
        machine_of(SEVEN, source="nvidia-smi topo"), Request(num_gpus=2, prefer_pix=True, exclude=(0,))
    )
    assert decode(encode(found), Plan, origin="a test") == found
    assert found.source == "nvidia-smi topo"


def machine_with(*uuids: str | None) -> Machine:
    return Machine(source="a test", gpus=tuple(Gpu(index=i, uuid=uuid) for i, uuid in enumerate(uuids)))


def test_gpus_are_named_by_uuid_in_tower_order() -> None:
    assert plan_environment(machine_with("GPU-a", "GPU-b", "GPU-c"), (2, 0)) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-c,GPU-a",
    }


def test_beside_a_gpu_that_does_not_answer_no_index_is_given() -> None:
    """CUDA leaves that GPU out, and counts the others anew."""
    lost = msgspec.structs.replace(
        machine_with("GPU-a", None, "GPU-c", None),
        source="live",
        gpus=(Gpu(index=0, uuid="GPU-a"), Gpu(index=1, lost=True), Gpu(index=2, uuid="GPU-c"), Gpu(index=3)),
    )
    assert plan_environment(lost, (2, 0))["CUDA_VISIBLE_DEVICES"] == "GPU-c,GPU-a"
    with pytest.raises(NoPlanError, match="no answer from GPU 1"):
        plan_environment(lost, (0, 3))


def test_one_unknown_uuid_makes_all_of_them_indices() -> None:
    # CUDA reads the list as either UUIDs or indices.
    environment = plan_environment(machine_with("GPU-a", None, "GPU-c"), (0, 1))
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert (
        plan_environment(machine_with("GPU-a", None, "GPU-c"), (0, 2))["CUDA_VISIBLE_DEVICES"]
        == "GPU-a,GPU-c"
    )


def test_sys_within_one_numa_node_counts_as_node_and_the_plan_reports_it() -> None:
    links = {(0, 1): Hop.SYS, (0, 2): Hop.SYS, (1, 2): Hop.NODE}
    machine = Machine(
        source="a test",
        gpus=(Gpu(index=0, numa_node=0), Gpu(index=1, numa_node=1), Gpu(index=2, numa_node=0)),
        links=tuple(Link(a=a, b=b, hop=hop, nvlinks=0) for (a, b), hop in links.items()),
    )
    reasons = " ".join(plan(machine, Request(num_gpus=2)).choice.reasons)
    assert "SYS within one NUMA node (GPUs 0 and 2) is treated as NODE" in reasons
    assert "gputopo bandwidth" in reasons


@pytest.mark.parametrize("uuid", ["GPU-a LD_PRELOAD=evil.so y=", "GPU-a,GPU-b", "$(id)", "GPU-", "gpu a"])
def test_a_uuid_that_is_none_never_gets_into_the_environment(uuid: str) -> None:
    environment = plan_environment(machine_with("GPU-a", uuid), (0, 1))
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize(
    ("request_", "variable_update", "ps_device", "all_reduce"),
    [
        (Request(num_gpus=2, ps="cpu"), "parameter_server", "cpu", None),
        (Request(num_gpus=2, ps="gpu:1"), "parameter_server", "gpu:1", None),
        (Request(num_gpus=4, ps="gpu:3"), "parameter_server", "gpu:3", None),
        (Request(num_gpus=2, variable_update="parameter_server"), "parameter_server", "gpu:spread", None),
        (Request(num_gpus=2, variable_update="replicated"), "replicated", None, "nccl"),
        (Request(num_gpus=2, variable_update="independent"), "independent", None, None),
    ],
)
def test_explicit_placements_win_over_the_rule(
    request_: Request, variable_update: str, ps_device: str | None, all_reduce: str | None
) -> None:
    choice = plan(machine_of(SEVEN), request_).choice
    assert (choice.variable_update, choice.ps_device, choice.all_reduce) == (
        variable_update,
        ps_device,
        all_reduce,
    )
