"""Two numbers of a box from its own runs."""

import math

import msgspec
import pytest

from gputopo.prediction.calibration import MeasuredStep, adjusted, calibrated, learn, range_share
from gputopo.prediction.gradients import GradientBlock
from gputopo.prediction.programs import require_program
from gputopo.prediction.step import ModelCosts, Placement, StepPredictor
from gputopo.values.run.plan import Learned
from tests import there

PROGRAM = require_program("gputopo")
MANY_BYTES = ModelCosts(
    (GradientBlock(200_000_000, 0.5), GradientBlock(400_000_000, 0.5)), (200_000_000, 400_000_000)
)
MANY_VARIABLES = ModelCosts(
    (GradientBlock(50_000_000, 0.5), GradientBlock(50_000_000, 0.5)), (200_000,) * 500
)


BOTH = (MANY_BYTES, MANY_VARIABLES)
ON_CPU = Placement("parameter_server", "cpu")


def _run(
    model: ModelCosts,
    links: float = 1.0,
    variables: float = 1.0,
    slower: float = 1.0,
    placing: Placement = ON_CPU,
) -> MeasuredStep:
    """A run of four GPUs on a box with these two numbers; `slower`: so many times, for no such reason."""
    facts = (0.1, placing, 1e-10, 1e-10)
    stepper = StepPredictor(model, adjusted(PROGRAM, links, variables), 4)
    compute_s, _, weights, gradients = facts
    step_s = compute_s + sum(stepper.predict(placing, compute_s, weights, gradients))
    return MeasuredStep(model, 4, 1, *facts, slower * step_s)


def _learned(*jobs: MeasuredStep) -> Learned:
    found = there(learn(PROGRAM, jobs))
    return found


def test_one_run_of_many_bytes_and_one_of_many_variables_show_both_numbers() -> None:
    """Slower links and dearer variables are separated."""
    found = _learned(_run(MANY_BYTES, 0.8, 1.5), _run(MANY_VARIABLES, 0.8, 1.5))

    assert found.links == pytest.approx(0.8, rel=0.05)
    assert found.variables == pytest.approx(1.5, rel=0.05)
    own = calibrated(PROGRAM, found)
    assert own.link_share == pytest.approx(PROGRAM.link_share * found.links)
    assert own.us_ring == pytest.approx(PROGRAM.us_ring * found.variables)


def test_no_runs_say_nothing_and_runs_as_predicted_change_only_the_range() -> None:
    """The numbers are 1 then, and the range is narrower."""
    assert learn(PROGRAM, []) is None
    found = _learned(_run(MANY_BYTES), _run(MANY_VARIABLES))
    assert (found.runs, found.jobs, found.odd, found.links, found.variables) == (2, 2, 0, 1.0, 1.0)
    assert range_share(found, ON_CPU) < 1


@pytest.mark.parametrize("jobs", [(_run(MANY_BYTES, 0.8),), (_run(MANY_BYTES, slower=1.4),)])
def test_one_job_changes_nothing(jobs: tuple[MeasuredStep, ...]) -> None:
    """It may have been disturbed, and nothing would show it."""
    assert learn(PROGRAM, jobs, runs=3) == Learned(runs=3, jobs=1)


@pytest.mark.parametrize("slower", [0.3, 0.6, 1.7, 5.0])
def test_an_odd_job_beside_another_changes_nothing(slower: float) -> None:
    """It is counted apart."""
    found = learn(PROGRAM, [_run(MANY_VARIABLES), _run(MANY_BYTES, slower=slower)])
    assert found == Learned(runs=2, jobs=2, odd=1)


@pytest.mark.parametrize("slower", [0.7, 1.3, 1.45, 4.0])
def test_an_odd_job_beside_two_that_agree_hardly_moves_the_numbers(slower: float) -> None:
    """Whether it is far enough to be left out or not."""
    usual = [_run(MANY_BYTES, 0.9, 1.1), _run(MANY_VARIABLES, 0.9, 1.1)]
    found = _learned(*usual, _run(MANY_BYTES, 0.9, 1.1, slower))
    without = _learned(*usual)
    assert abs(math.log(found.links / without.links)) < 0.06
    assert abs(math.log(found.variables / without.variables)) < 0.06


def test_a_box_that_is_slow_in_most_jobs_is_believed() -> None:
    """Each is farther from its prediction than an odd one."""
    jobs = [_run(MANY_BYTES, 0.5, 2.0), _run(MANY_BYTES, 0.52, 2.0), _run(MANY_VARIABLES, 0.5, 2.0)]
    found = _learned(*jobs)
    assert found.odd == 0
    assert found.links < 0.7
    assert found.variables > 1.5


@pytest.mark.parametrize("links", [1.05, 1.3, 1.9])
def test_links_that_were_measured_carry_no_more_than_that_whatever_runs_show(links: float) -> None:
    """So that no step is shorter than its bytes need; links that are slower than that are believed."""
    fast = [_run(model, links, 1.2) for model in BOTH]
    found = there(learn(PROGRAM, fast, measured=True))
    own = calibrated(PROGRAM, found)
    assert 0.98 < own.link_share <= 1.0

    stepper = StepPredictor(MANY_BYTES, msgspec.structs.replace(own, overlap=0.0), 4)
    assert sum(stepper.predict(ON_CPU, 0.1, 1e-10, 1e-10)) >= MANY_BYTES.bytes * 1e-10
    slow = [_run(model, 1 / links, 1.2) for model in BOTH]
    assert learn(PROGRAM, slow, measured=True) == learn(PROGRAM, slow)


def test_the_range_stays_in_modes_that_never_ran() -> None:
    """Whichever GPU has the variables is one mode."""
    found = _learned(_run(MANY_BYTES), _run(MANY_VARIABLES))
    assert set(found.range_shares) == {"parameter_server cpu"}
    for placing in (Placement("replicated", None, "nccl"), Placement("parameter_server", "gpu:1")):
        assert range_share(found, placing) == 1
    owned = [_run(model, placing=Placement("parameter_server", "gpu:0")) for model in BOTH]
    assert set(_learned(*owned).range_shares) == {"parameter_server gpu:N"}


def test_the_range_narrows_with_runs_that_agree_and_widens_with_those_that_do_not() -> None:
    """By how many there are, and how far they are from what was learned."""
    few = _learned(*[_run(MANY_BYTES), _run(MANY_VARIABLES)])
    many = _learned(*[_run(MANY_BYTES), _run(MANY_VARIABLES)] * 4)
    apart = _learned(*[_run(MANY_BYTES, slower=0.7), _run(MANY_BYTES, slower=1.4)] * 4)
    [narrow], [usual], [wide] = (one.range_shares.values() for one in (many, few, apart))
    assert narrow < usual < 1 < wide
