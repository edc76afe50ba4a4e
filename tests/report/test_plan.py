import msgspec
import pytest

from gputopo.report import document_lines, document_text, plan_document, plan_summary
from gputopo.values.run.plan import (
    Candidate,
    GpuCount,
    GroupSpeed,
    Learned,
    Plan,
    Prediction,
    Refusal,
    ResourceLoad,
    StepLine,
    Unequal,
)
from tests.report.shown import section_text

CHOICE = Candidate(
    gpus=(0, 1), ps_device="gpu:0", reasons=("GPUs 0 and 1 are PIX apart", "lowest of 9 equal sets")
)


def shown(plan: Plan, width: int = 80) -> str:
    return document_text(plan_document(plan), width)


def test_a_plan_shows_choice_reasons_others_and_refusals() -> None:
    plan = Plan(
        choice=CHOICE,
        candidates=(CHOICE, Candidate(gpus=(3, 4), ps_device="cpu", reasons=("farthest pair PHB", "more"))),
        refused=(Refusal(reason="GPU 2 excluded: lost"),),
        model="alexnet",
        source="nvidia-smi topo",
    )
    text = shown(plan)
    assert text.startswith("GPUs 0,1, parameter_server gpu:0 for alexnet.\n")
    assert "nvidia-smi topo" in text
    assert "- lowest of 9 equal sets" in text
    assert "3,4   parameter_server cpu  farthest pair PHB\n" in text
    assert "- GPU 2 excluded: lost" in text


def test_at_most_five_reasons_are_shown_warnings_first_and_no_refusal_twice() -> None:
    many = Candidate(
        gpus=(0, 1), ps_device="cpu", reasons=(*map(str, range(7)), "GPU 2 excluded: lost", "use")
    )
    refused = (Refusal(reason="GPU 2 excluded: lost"),)
    why = (
        shown(Plan(choice=many, refused=refused, warnings=("use",)))
        .partition("Why\n")[2]
        .partition("\n\n")[0]
    )
    assert [line.strip() for line in why.splitlines()] == [
        *("- use", "- 0", "- 1", "- 2", "- 3"),
        "- and 3 more (--json)",
    ]


def test_parts_that_a_plan_has_not_are_left_out() -> None:
    text = shown(Plan(choice=CHOICE, candidates=(CHOICE,)))
    assert text.startswith("GPUs 0,1, parameter_server gpu:0.\n")
    assert "Candidates" not in text
    assert "Refused" not in text
    assert "Images/sec" not in text


def test_many_candidates_are_cut_with_a_word_about_it() -> None:
    others = tuple(Candidate(gpus=(0, n), ps_device="cpu") for n in range(2, 11))
    assert "and 4 more" in shown(Plan(choice=CHOICE, candidates=(CHOICE, *others)))


def test_a_predicted_speed_comes_with_its_range() -> None:
    fast = Candidate(gpus=(0,), images_per_sec=1840.4, images_per_sec_low=1700, images_per_sec_high=1999.6)
    assert (
        plan_document(Plan(choice=fast)).answer
        == "GPU 0, parameter_server: 1,840 images/sec (80% range 1,700 to 2,000)."
    )


@pytest.mark.parametrize(
    ("gpus", "text"), [((0, 1, 2, 3), "0,1,2,3"), (tuple(range(8)), "0-7"), ((4, 3, 2, 1, 0), "4,3,2,1,0")]
)
def test_gpus_are_written_in_the_order_of_the_towers_as_the_option_takes_them(
    gpus: tuple[int, ...], text: str
) -> None:
    assert plan_document(Plan(choice=Candidate(gpus=gpus))).answer == f"GPUs {text}, parameter_server."


@pytest.mark.parametrize("width", [50, 80, 120])
def test_a_plan_of_sixteen_gpus_fits(width: int) -> None:
    whole = Candidate(gpus=tuple(range(16)), ps_device="cpu", reasons=("far " * 40,))
    other = Candidate(gpus=tuple(range(16)), ps_device="gpu:15", reasons=("near " * 40,))
    equal = GroupSpeed(gpus=whole.gpus, images_per_sec=12_000.0, batch_sizes=(512,) * 16)
    shared = GroupSpeed(gpus=whole.gpus, images_per_sec=13_000.0, batch_sizes=tuple(range(500, 516)))
    odd = GroupSpeed(gpus=whole.gpus[::2], images_per_sec=9000.0, batch_sizes=(512,) * 8)
    unequal = Unequal(
        together=equal,
        alone=(odd,),
        in_proportion=shared,
        better=shared,
        use=f"--batch-size {','.join(map(str, shared.batch_sizes))}",
    )
    plan = Plan(
        choice=whole,
        candidates=(whole, other),
        refused=(Refusal(reason="no " * 60),),
        unequal=unequal,
    )
    lines = shown(plan, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "--batch-size" in " ".join(lines)


def predicted(ps: str, ms: float, gpus: tuple[int, ...] = (0, 1)) -> Candidate:
    """Return a candidate whose step is 50 ms of compute and else as much weights as gradients."""
    exposed = {"weights": (ms - 50) / 2, "gradients": (ms - 50) / 2, "variables": 0.0}
    return Candidate(
        gpus=gpus,
        ps_device=ps,
        images_per_sec=100_000 / ms,
        images_per_sec_low=80_000 / ms,
        images_per_sec_high=120_000 / ms,
        speedup=1.5,
        step_ms=ms,
        compute_ms=50.0,
        exposed_ms=exposed,
        limited_by="link of GPU 0, sending",
        reasons=("far",),
    )


def prediction(**fields: object) -> Prediction:
    return msgspec.structs.replace(
        Prediction(
            program="gputopo",
            batch_size=50,
            single_gpu_images_per_sec={0: 1000.0, 1: 1000.0},
            single_gpu_source="given",
            margin=0.2,
        ),
        **fields,
    )


PREDICTED = Plan(
    choice=predicted("gpu:0", 80.0),
    candidates=(predicted("gpu:0", 80.0), predicted("cpu", 100.0), predicted("gpu:spread", 200.0)),
    prediction=prediction(),
)


def test_a_predicted_plan_shows_its_range_its_limit_and_its_margin() -> None:
    text = shown(PREDICTED)
    assert text.startswith("GPUs 0,1, parameter_server gpu:0: 1,250 images/sec (80% range 1,000 to 1,500).\n")
    assert "Gain     1.50 times one GPU\n" in text
    assert "- waits longest for: link of GPU 0, sending\n" in text
    assert "Margin   25% faster than parameter_server cpu (predicted)\n" in text
    assert "1,000 images/sec of one GPU (given), batch 50 per GPU, constants of" in text


def test_the_steps_of_the_next_best_are_bars_of_their_parts() -> None:
    lines = shown(PREDICTED).partition("Candidates\n")[2].splitlines()
    bars = [line.split()[-1] for line in lines[1:4]]
    assert [len(bar) for bar in bars] == sorted(len(bar) for bar in bars)
    for bar, ms in zip(bars, (80, 100, 200), strict=True):
        assert bar == "█" * bar.count("█") + "▓" * bar.count("▓") + "▒" * bar.count("▒")
        assert bar.count("█") == pytest.approx(50 * len(bar) / ms, abs=1)
    assert lines[4].split() == ["█", "compute", "▓", "weights", "▒", "gradients", "░", "variables"]


def test_a_bar_has_a_colour_for_each_part() -> None:
    spans = [span for line in document_lines(plan_document(PREDICTED), 80) for span in line]
    styles = {text[0]: style for text, style in spans if text.startswith(("█", "▓", "▒"))}
    assert len(set(styles.values()) - {""}) == len(styles) == 3


def test_a_plan_that_is_slower_than_fewer_gpus_begins_with_that() -> None:
    fewer = GpuCount(num_gpus=1, images_per_sec=1600.0, speedup=1.0)
    slow = msgspec.structs.replace(PREDICTED, prediction=prediction(fewer=fewer))
    assert plan_document(slow).answer.startswith("Slower than 1 GPU (1,600): --num-gpus 1. GPUs 0,1, ")
    more = msgspec.structs.replace(fewer, num_gpus=2, images_per_sec=1000.0)
    text = shown(msgspec.structs.replace(PREDICTED, prediction=prediction(fewer=more)))
    assert text.startswith("GPUs 0,1")
    assert "1.25 times 2 GPUs" in " ".join(text.split())


def test_candidates_that_are_equally_fast_are_one_line() -> None:
    equal = msgspec.structs.replace(
        predicted("cpu", 80.0), variable_update="replicated", ps_device=None, all_reduce="copy"
    )
    plan = msgspec.structs.replace(PREDICTED, candidates=(PREDICTED.choice, equal, predicted("cpu", 100.0)))
    lines = shown(plan).partition("Candidates\n")[2].splitlines()
    assert "parameter_server gpu:0 or replicated copy" in lines[1]
    assert "parameter_server cpu" in lines[2]


def test_a_runner_up_that_is_predicted_faster_and_a_measured_speed_are_said() -> None:
    text = shown(msgspec.structs.replace(PREDICTED, prediction=prediction(margin=-0.1)))
    assert "9% slower than parameter_server cpu (predicted)" in " ".join(text.split())
    known = msgspec.structs.replace(PREDICTED.choice, evidence="measured")
    assert plan_document(Plan(choice=known)).answer.endswith(
        "parameter_server gpu:0: 1,250 images/sec, measured."
    )


def test_of_a_range_wider_than_a_factor_of_two_no_numbers_are_shown() -> None:
    wide = msgspec.structs.replace(PREDICTED.choice, images_per_sec_low=None, images_per_sec_high=None)
    assert plan_document(Plan(choice=wide)).answer.endswith(
        ": about 1,000 images/sec (order of magnitude only)."
    )


def test_a_run_prints_two_lines_of_a_prediction_and_none_without() -> None:
    first, second = plan_summary(PREDICTED)
    speed = "1,250 images/sec (80% range 1,000 to 1,500)"
    assert first == f"Predicted for GPUs 0,1, parameter_server gpu:0: {speed}."
    assert (
        second
        == "Waits longest for: link of GPU 0, sending; 25% faster than parameter_server cpu (predicted)."
    )
    assert plan_summary(Plan(choice=CHOICE)) == ()


@pytest.mark.parametrize("width", [50, 80, 120])
def test_a_predicted_plan_of_sixteen_gpus_fits(width: int) -> None:
    gpus = tuple(range(0, 32, 2))
    first, second = predicted("gpu:spread", 80.0, gpus), predicted("gpu:30", 100.0, gpus)
    speeds = dict.fromkeys(gpus, 1000.0)
    basis = prediction(single_gpu_images_per_sec=speeds, single_gpu_source="published: " * 9)
    plan = Plan(choice=first, candidates=(first, second), prediction=basis)
    assert max(map(len, shown(plan, width).splitlines())) <= width


@pytest.mark.parametrize(
    ("learned", "words"),
    [
        (
            Learned(runs=5, jobs=3, step_factor=1.25),
            "5 runs of 3 jobs on several GPUs: steps take 1.25 times as long as the default prediction",
        ),
        (
            Learned(runs=1, jobs=1),
            "1 run of 1 job on several GPUs: changes no prediction, 2 jobs are needed",
        ),
    ],
)
def test_a_plan_states_how_many_runs_of_the_box_it_rests_on(learned: Learned, words: str) -> None:
    prediction = Prediction(
        program="gputopo",
        batch_size=64,
        single_gpu_images_per_sec={0: 900.0, 1: 900.0},
        single_gpu_source="given",
        learned=learned,
    )
    fast = Candidate(gpus=(0, 1), ps_device="cpu", images_per_sec=1700.0, step_ms=75.0, compute_ms=70.0)
    text = shown(Plan(choice=fast, candidates=(fast,), prediction=prediction), 400)
    assert f"Own runs  {words}" in text
    bare = msgspec.structs.replace(prediction, learned=None)
    assert "Own runs" not in shown(Plan(choice=fast, candidates=(fast,), prediction=bare))


EQUAL = GroupSpeed(gpus=(0, 1, 2), images_per_sec=270.0, batch_sizes=(64, 64, 64))
ALONE = GroupSpeed(gpus=(0, 1), images_per_sec=198.0, batch_sizes=(64, 64))
SHARED = GroupSpeed(gpus=(0, 1, 2), images_per_sec=300.0, batch_sizes=(60, 60, 72))


@pytest.mark.parametrize(
    ("better", "use", "words"),
    [
        (SHARED, "--batch-size 60,60,72", "in proportion to the GPUs' speeds would be faster: --batch-size"),
        (EQUAL, "--batch-size 64", "equal batches would be faster: --batch-size 64"),
        (ALONE, "--gpus 0,1", "GPUs 0-1 alone would be faster: --gpus 0,1"),
        (SHARED, "", "the plan is the fastest"),
        (EQUAL, "", "no alternative is clearly faster than the plan (10.0%)"),
    ],
)
def test_unequal_gpus_are_compared_with_what_each_lacks_of_the_fastest(
    better: GroupSpeed, use: str, words: str
) -> None:
    unequal = Unequal(together=EQUAL, alone=(ALONE,), in_proportion=SHARED, better=better, use=use)
    text = shown(Plan(choice=CHOICE, unequal=unequal))
    assert words in text
    rows = [line.split() for line in text.splitlines() if line.startswith("  0-")]
    assert [row[-1 - (row[-1] == "*")] for row in rows] == ["10.0%", "34.0%", "0.0%"]
    assert [row[-1] == "*" for row in rows] == [one == better for one in (EQUAL, ALONE, SHARED)]
    assert "60, 60, 72" in text


UP = ResourceLoad(
    resource="GPUs 0-3 to the host",
    count=4,
    weights_mb=0.0,
    wait_ms=0.0,
    gradients_mb=20.0,
    busy_ms=40.0,
    through_ms=80.0,
)
LINE = StepLine(
    weights_ms=10.0,
    forward_ms=20.0,
    backward_ms=40.0,
    gradients_ms=10.0,
    variables_ms=0.0,
    resources=(
        UP,
        msgspec.structs.replace(
            UP, resource="the host to GPUs 0-3", weights_mb=20.0, wait_ms=10.0, gradients_mb=0.0, busy_ms=0.0
        ),
    ),
    blocks=(),
)


def timeline(line: StepLine, width: int = 80) -> str:
    return section_text(plan_document(Plan(choice=CHOICE, line=line)), "Line of gradients", width)


def test_the_parts_of_a_step_are_shown_by_their_ends_without_those_that_take_no_time() -> None:
    text = timeline(LINE, 120)
    assert text.splitlines()[0] == (
        "ms from the start of the step: weights until 10.0, forward until 30.0, backward until 70.0, "
        "gradients until 80.0"
    )
    rows = [row.split("  ") for row in text.splitlines()]
    cells = {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}
    assert cells["GPUs 0-3 to the host"] == ["20.0", "40.0", "80.0"]
    assert cells["the host to GPUs 0-3"] == ["20.0", "10.0"]


def test_many_links_are_cut_with_a_word_about_it() -> None:
    assert "and 3 more; --json has them" in timeline(msgspec.structs.replace(LINE, resources=(UP,) * 13))


@pytest.mark.parametrize("width", [58, 78, 138])
def test_a_timeline_fits(width: int) -> None:
    long = msgspec.structs.replace(UP, resource="uplink of GPUs 0-1,4-5,8-9, to the host and 3 alike")
    found = msgspec.structs.replace(LINE, resources=(long,))
    assert max(map(len, timeline(found, width).splitlines())) <= width
