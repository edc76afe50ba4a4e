"""The line of gradients as text."""

import msgspec
import pytest

from gputopo.report.plan_parts import step_line_blocks
from gputopo.values.run.plan import ResourceLoad, StepLine
from tests.report.shown import text_of_blocks

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


def shown(line: StepLine, width: int = 80) -> str:
    return text_of_blocks(*step_line_blocks(line), width=width)


def test_parts_are_shown_by_their_ends_without_those_that_take_no_time() -> None:
    assert shown(LINE, 120).splitlines()[0] == (
        "ms from the start of the step: weights until 10.0, forward until 30.0, backward until 70.0, "
        "gradients until 80.0"
    )


def test_each_link_has_what_it_carries() -> None:
    rows = [row.split("  ") for row in shown(LINE).splitlines()]
    cells = {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}
    assert cells["GPUs 0-3 to the host"] == ["20.0", "40.0", "80.0"]
    assert cells["the host to GPUs 0-3"] == ["20.0", "10.0"]


def test_many_links_are_cut_with_a_word_about_it() -> None:
    assert "and 3 more; --json has them" in shown(msgspec.structs.replace(LINE, resources=(UP,) * 13))


@pytest.mark.parametrize("width", [58, 78, 138])
def test_it_fits(width: int) -> None:
    long = msgspec.structs.replace(UP, resource="uplink of GPUs 0-1,4-5,8-9, to the host and 3 alike")
    found = msgspec.structs.replace(LINE, resources=(long,))
    assert max(map(len, shown(found, width).splitlines())) <= width
