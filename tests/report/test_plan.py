import pytest

from gputopo.report.layout import text_of
from gputopo.report.plan import environment_lines, placement_in_words, plan_view
from gputopo.values.run.plan import Candidate, Plan, Refusal

CHOICE = Candidate(
    gpus=(0, 1), ps_device="gpu:0", reasons=("GPUs 0 and 1 are PIX apart", "lowest of 9 equal sets")
)


def shown(plan: Plan, width: int = 80) -> str:
    return text_of(plan_view(plan, width))


def test_a_plan_shows_choice_reasons_others_refusals_and_environment() -> None:
    plan = Plan(
        choice=CHOICE,
        candidates=(CHOICE, Candidate(gpus=(3, 4), ps_device="cpu", reasons=("farthest pair PHB", "more"))),
        refused=(Refusal(reason="GPU 2 left out: lost"),),
        environment={"CUDA_VISIBLE_DEVICES": "0,1"},
        model="alexnet",
        source="nvidia-smi topo",
    )
    text = shown(plan)
    assert "Plan for alexnet\n  GPUs       0,1\n" in text
    assert "nvidia-smi topo" in text
    assert "-  lowest of 9 equal sets" in text
    assert "3,4   parameter_server, variables on cpu  farthest pair PHB\n" in text
    assert "-  GPU 2 left out: lost" in text
    assert text.endswith("Environment\n  CUDA_VISIBLE_DEVICES=0,1\n")


def test_parts_that_a_plan_has_not_are_left_out() -> None:
    text = shown(Plan(choice=CHOICE, candidates=(CHOICE,)))
    assert text.startswith("Plan\n")
    assert "Next best" not in text
    assert "Refused" not in text
    assert "Images/sec" not in text


def test_many_candidates_are_cut_with_a_word_about_it() -> None:
    others = tuple(Candidate(gpus=(0, n), ps_device="cpu") for n in range(2, 11))
    assert "and 4 more" in shown(Plan(choice=CHOICE, candidates=(CHOICE, *others)))


def test_a_predicted_speed_comes_with_its_range() -> None:
    fast = Candidate(gpus=(0,), images_per_sec=1840.4, images_per_sec_low=1700, images_per_sec_high=1999.6)
    assert "Images/sec  1840 (1700 to 2000)" in shown(Plan(choice=fast))


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (CHOICE, "parameter_server, variables on gpu:0"),
        (
            Candidate(gpus=(0, 1), variable_update="replicated", all_reduce="copy"),
            "replicated, a copy on every GPU, gradients reduced by copy",
        ),
        (Candidate(gpus=(0, 1), variable_update="independent"), "independent"),
    ],
)
def test_a_placement_is_reported_in_words(candidate: Candidate, words: str) -> None:
    assert placement_in_words(candidate) == words


def test_an_environment_value_that_a_shell_would_split_is_quoted() -> None:
    plan = Plan(choice=CHOICE, environment={"A": "GPU-1,GPU-2", "B": "x y"})
    assert environment_lines(plan) == ["A=GPU-1,GPU-2", "B='x y'"]


@pytest.mark.parametrize(
    ("gpus", "text"), [((0, 1, 2, 3), "0,1,2,3"), (tuple(range(8)), "0-7"), ((4, 3, 2, 1, 0), "4,3,2,1,0")]
)
def test_gpus_are_written_in_the_order_of_the_towers_as_the_option_takes_them(
    gpus: tuple[int, ...], text: str
) -> None:
    assert f"GPUs       {text}\n" in shown(Plan(choice=Candidate(gpus=gpus)))


@pytest.mark.parametrize("width", [50, 80, 120])
def test_a_plan_of_sixteen_gpus_fits(width: int) -> None:
    whole = Candidate(gpus=tuple(range(16)), ps_device="cpu", reasons=("far " * 40,))
    other = Candidate(gpus=tuple(range(16)), ps_device="gpu:15", reasons=("near " * 40,))
    plan = Plan(choice=whole, candidates=(whole, other), refused=(Refusal(reason="no " * 60),))
    assert max(map(len, shown(plan, width).splitlines())) <= width
