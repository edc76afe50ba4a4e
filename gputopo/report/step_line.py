"""The line of gradients as text: what each link carries, when the gradients of each block are through."""

from collections.abc import Sequence

from gputopo.report.document import Block, Drawing, Table
from gputopo.report.layout import Column, Line, aligned, paragraph, plain, width_of
from gputopo.values.run.plan import BlockGradients, ResourceLoad, StepLine

_MAX_RESOURCES = 10  # the others are faster; the JSON has them
_MAX_BLOCKS = 24  # rows; neighbours share one where a model has more
_SHORTEST_BAR, _WIDEST_BAR = 12, 60
_SENDING, _ENDED = "▒", "│"


def step_line_blocks(found: StepLine) -> list[Block]:
    """Return the parts of the step, a table of the resources, and the blocks as bars over time."""
    if not found.resources:
        return [_parts(found), "nothing is exchanged between GPUs"]
    return [_parts(found), _resources(found.resources), Drawing(lambda width: _blocks(found, width))]


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


def _resources(loads: Sequence[ResourceLoad]) -> Table:
    rows = [
        (
            one.resource,
            _number(one.weights_mb),
            _number(one.wait_ms),
            _number(one.gradients_mb),
            _number(one.busy_ms),
            f"{one.through_ms:.1f}" if one.busy_ms else "",
        )
        for one in loads[:_MAX_RESOURCES]
    ]
    heads = ("Link, each", "weights\nMB", "waits\nms", "gradients\nMB", "busy\nms", "through\nat")
    more = len(loads) - len(rows)
    notes = (f"and {more} more; --json has them",) if more else ()
    return Table.of(heads, rows, ("left", *("right",) * 5), notes)


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
