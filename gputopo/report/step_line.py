"""The line of gradients as text: what each link carries, when the gradients of each block are through."""

from collections.abc import Sequence

from gputopo.report.layout import QUIET, Column, Line, aligned, line, paragraph, plain, width_of
from gputopo.values.run.plan import BlockGradients, ResourceLoad, StepLine

_MAX_RESOURCES = 10  # the others are faster; the JSON has them
_MAX_BLOCKS = 24  # rows; neighbours share one where a model has more
_SHORTEST_BAR, _WIDEST_BAR = 12, 60
_SENDING, _ENDED = "▒", "│"


def step_line_lines(found: StepLine, width: int) -> list[Line]:
    """Return the parts of the step, a table of the resources, and the blocks as bars over time."""
    lines = paragraph(_parts(found), width)
    if not found.resources:
        return [*lines, line("nothing is exchanged between GPUs")]
    return [*lines, line(), *_resources(found.resources, width), line(), *_blocks(found, width)]


def _parts(found: StepLine) -> str:
    """Return the parts of the step by when they end."""
    parts = {
        "weights": found.weights_ms,
        "forward": found.forward_ms,
        "backward": found.backward_ms,
        "gradients": found.gradients_ms,
        "variables": found.variables_ms,
    }
    ends, end = [], 0.0
    for name, ms in parts.items():
        end += ms
        if ms:
            ends.append(f"{name} until {end:.1f}")
    return f"ms from the start of the step: {', '.join(ends)}"


def _resources(loads: Sequence[ResourceLoad], width: int) -> list[Line]:
    shown = loads[:_MAX_RESOURCES]
    through = tuple(f"{one.through_ms:.1f}" if one.busy_ms else "" for one in shown)
    columns = [
        Column("weights\nMB", tuple(_number(one.weights_mb) for one in shown), "right"),
        Column("waits\nms", tuple(_number(one.wait_ms) for one in shown), "right"),
        Column("gradients\nMB", tuple(_number(one.gradients_mb) for one in shown), "right"),
        Column("busy\nms", tuple(_number(one.busy_ms) for one in shown), "right"),
        Column("through\nat", through, "right"),
    ]
    names = tuple(plain(one.resource) for one in shown)
    space = max(width - width_of(columns), 8)
    lines = aligned(Column("Link, each", names, max_width=space), columns)
    if len(loads) > len(shown):
        lines.append(line(f"and {len(loads) - len(shown)} more; --json has them", QUIET))
    return lines


def _number(value: float) -> str:
    return f"{value:.1f}" if value else ""


def _blocks(found: StepLine, width: int) -> list[Line]:
    """Return each block with its gradients from when they are ready until they are through, as bars."""
    rows = _rows(found.blocks)
    begin, ends = found.backward_begins_ms, found.backward_ends_ms
    last = max(ends, *(one.through_ms for one in rows))
    columns = [
        Column("MB", tuple(f"{one.mb:.1f}" for one in rows), "right"),
        Column("ready", tuple(f"{one.ready_ms:.1f}" for one in rows), "right"),
        Column("through", tuple(f"{one.through_ms:.1f}" for one in rows), "right"),
    ]
    names = tuple(plain(one.block) for one in rows)
    blocks = Column("Block", names, max_width=max(width - width_of(columns) - _SHORTEST_BAR - 2, 8))
    space = min(max(width - blocks.width - width_of(columns) - 2, _SHORTEST_BAR), _WIDEST_BAR)
    per_ms = (space - 1) / ((last - begin) or 1.0)
    end = round((ends - begin) * per_ms)

    def bar(one: BlockGradients) -> str:
        first, stop = (round((ms - begin) * per_ms) for ms in (one.ready_ms, one.through_ms))
        sending = range(first, max(stop, first + 1))
        return "".join(
            _SENDING if place in sending else _ENDED if place == end else " " for place in range(space)
        )

    bars = Column("", tuple(map(bar, rows)))
    through = max(one.through_ms for one in rows)
    after = f"the last {through - ends:.1f} ms after it" if through > ends + 0.05 else "all before it"
    legend = f"{_SENDING} from ready to through  {_ENDED} backward ends; {after}"
    return [*aligned(blocks, [*columns, bars]), *paragraph(legend, width)]


def _rows(blocks: Sequence[BlockGradients]) -> list[BlockGradients]:
    """Return the blocks, neighbours together where there are many."""
    each = -(-len(blocks) // _MAX_BLOCKS)
    parts = [blocks[start : start + each] for start in range(0, len(blocks), each)]
    return [
        BlockGradients(
            block=part[0].block if len(part) == 1 else f"{part[0].block} to {part[-1].block}",
            mb=sum(one.mb for one in part),
            ready_ms=part[0].ready_ms,
            through_ms=part[-1].through_ms,
        )
        for part in parts
    ]
