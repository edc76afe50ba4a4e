"""Parts of a plan: other numbers of GPUs, unequal GPUs, a changed machine, the line of gradients."""

import re
from collections.abc import Sequence

from gputopo.report import units
from gputopo.report.document import Block, Drawing, Rows, Table
from gputopo.report.layout import Column, Line, aligned, paragraph, plain, width_of
from gputopo.values.index_ranges import index_ranges
from gputopo.values.run.batches import batch_words
from gputopo.values.run.batches import plain as plain_batch
from gputopo.values.run.plan import (
    Autotune,
    BlockGradients,
    Candidate,
    GroupSpeed,
    HowMany,
    MeasuredPlacement,
    ResourceLoad,
    StepLine,
    Unequal,
    WhatIf,
    mode_words,
)


def how_many_words(how_many: HowMany) -> str:
    """Return how many GPUs were chosen and why: `2 GPUs: 4 are slower than 2: ...`."""
    return f"{units.counted(how_many.num_gpus, 'GPU')}: {how_many.reason}"


def how_many_blocks(how_many: HowMany) -> list[Block]:
    """Return how many GPUs were chosen and why, and the predicted speed of 1, 2, 4, ... GPUs."""
    rows = [
        (
            str(one.num_gpus),
            units.whole(one.images_per_sec),
            f"{one.speedup:.2f}",
            "" if one.gain is None else f"{one.gain:.0%}",
            "*" if one.num_gpus == how_many.num_gpus else "",
        )
        for one in how_many.counts
    ]
    table = Table.of(
        ("GPUs", "images/sec", "speedup", "gain", ""), rows, ("left", "right", "right", "right", "left")
    )
    return [how_many_words(how_many), *([table] if rows else [])]


def unequal_blocks(unequal: Unequal) -> list[Block]:
    """Return the predicted images/sec of GPUs of different speeds together, of those of one speed alone, and
    of all with batches in proportion to their speeds; what each lacks of the fastest of these.
    """
    better = unequal.better
    groups = list(dict.fromkeys((unequal.together, *unequal.alone, unequal.in_proportion, better)))
    fastest = max(one.images_per_sec for one in groups)
    less = 1 - better.images_per_sec / fastest
    if not unequal.use:
        words = f"nothing is clearly faster than the plan ({less:.1%})" if less else "the plan is the fastest"
    elif better == unequal.in_proportion:
        words = f"batches in proportion to the GPUs' speeds would be faster: {unequal.use}"
    elif better == unequal.together:
        words = f"equal batches would be faster: {unequal.use}"
    else:
        words = f"{units.gpus(better.gpus)} alone would be faster: {unequal.use}"
    rows = [
        (
            index_ranges(one.gpus),
            _batches(one),
            units.whole(one.images_per_sec),
            f"{1 - one.images_per_sec / fastest:.1%}",
            "*" if one == better else "",
        )
        for one in groups
    ]
    heads = ("GPUs", "batches", "images/sec", "less", "")
    return [words, Table.of(heads, rows, ("left", "left", "right", "right", "left"))]


def _batches(group: GroupSpeed) -> str:
    batch = plain_batch(group.batch_sizes)
    return ", ".join(map(str, batch)) if isinstance(batch, tuple) else f"{batch} each"


def what_if_answer(what_if: WhatIf, model: str | None) -> str:
    """Return what the changes bring, in one sentence."""
    if not what_if.changes:
        return "No single change of a link, of NVLink, of ACS or of peer access pays: less than 1%."
    changes = "; ".join(map(change_words, what_if.changes))
    after, before = (units.whole(one.images_per_sec or 0.0) for one in (what_if.after, what_if.before))
    words = f"{changes}: {after} instead of {before} images/sec{f' of {model}' if model else ''}"
    batch = what_if.pays_at_batch
    pays = "" if batch is None else f" It pays at batch {batch} per GPU or below."
    return f"{words[0].upper()}{words[1:]}, {_gain(what_if.share)}.{pays}"


def what_if_blocks(what_if: WhatIf) -> list[Block]:
    """Return the predicted images/sec before and after changes, and what they rest on."""
    if not what_if.changes:
        return []
    rows = (("Before", _range(what_if.before)), ("After", _range(what_if.after)))
    return [Rows((*rows, ("Rests on", "; ".join(what_if.basis))))]


def _gain(share: float) -> str:
    return "no difference" if abs(share) < 0.005 else f"{share:+.0%}"


def change_words(change: str) -> str:
    """Return a change in words: `GPU 3 into an x16 slot`."""
    if found := re.fullmatch(r"gpu([0-9]+): x([0-9]+)", change):
        return f"GPU {found[1]} into an x{found[2]} slot"
    if found := re.fullmatch(r"all: x([0-9]+)", change):
        return f"all GPUs into x{found[1]} slots"
    if found := re.fullmatch(r"nvlink ([0-9]+)-([0-9]+)", change):
        return f"NVLink between GPUs {found[1]} and {found[2]}"
    return {"acs off": "ACS off", "p2p on": "peer access on"}.get(change) or plain(change)


def limit_words(choice: Candidate) -> str:
    """Return what limits a step: compute, or what it waits for longest beyond that; "" if it is not known."""
    limit = choice.limited_by or ""
    return f"{'limited by' if limit.startswith('compute') else 'waits longest for'}: {limit}" if limit else ""


def _range(candidate: Candidate) -> str:
    speed, low, high = (
        candidate.images_per_sec or 0.0,
        candidate.images_per_sec_low,
        candidate.images_per_sec_high,
    )
    limit = ", ".join(("", units.gpus(candidate.gpus), *filter(None, (limit_words(candidate),))))
    if low is None or high is None:
        return f"about {units.rough(speed)} images/sec (order of magnitude only){limit}"
    return f"{units.whole(speed)} images/sec (80% range {units.whole(low)} to {units.whole(high)}){limit}"


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
            _mb(one.weights_mb),
            _mb(one.wait_ms),
            _mb(one.gradients_mb),
            _mb(one.busy_ms),
            f"{one.through_ms:.1f}" if one.busy_ms else "",
        )
        for one in loads[:_MAX_RESOURCES]
    ]
    heads = ("Link, each", "weights\nMB", "waits\nms", "gradients\nMB", "busy\nms", "through\nat")
    more = len(loads) - len(rows)
    notes = (f"and {more} more; --json has them",) if more else ()
    return Table.of(heads, rows, ("left", *("right",) * 5), notes)


def _mb(value: float) -> str:
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


_SETTLED = {
    "lead": "its lead exceeds the noise",
    "same": "the others are within 1%",
    "time": "the time was used up before its lead exceeded the noise",
    "stopped": "stopped before its lead exceeded the noise",
    "failed": "no other could be run",
}


def autotune_blocks(found: Autotune) -> list[Block]:
    """Return a table of the placements, and how sure the fastest is."""
    rows = [
        (
            mode_words(one.candidate),
            measured_speed(one.candidate.images_per_sec),
            measured_speed(one.images_per_sec),
            str(len(one.runs)),
            _note(found, place),
        )
        for place, one in enumerate(found.measured)
    ]
    heads = ("Placement", "predicted", "measured", "runs", "")
    title = f"Autotune of {found.model}, images/sec at batch {batch_words(found.batch_size)}"
    return [title, Table.of(heads, rows, ("left", "right", "right", "right", "left"))]


def autotune_note(found: Autotune) -> str:
    """Return what was chosen in a sentence."""
    if found.winner is None:
        return "Autotune: nothing was measured."
    best = found.measured[found.winner]
    speed = f"{measured_speed(best.images_per_sec)} images/sec measured"
    if best.candidate.images_per_sec is not None:
        speed += f", {measured_speed(best.candidate.images_per_sec)} predicted"
    count = sum(bool(one.runs) for one in found.measured)
    which = f"Fastest of {count} measured placements" if count > 1 else "The only measured placement"
    return f"{which}: {mode_words(best.candidate)}, {speed}; {_SETTLED[found.settled]}."


def _note(found: Autotune, place: int) -> str:
    one: MeasuredPlacement = found.measured[place]
    if one.failure is not None:
        return f"failed: {one.failure}"
    return "fastest" if place == found.winner else ""


def measured_speed(speed: float | None) -> str:
    """Return images/sec with three figures or more."""
    if speed is None:
        return "-"
    return units.whole(speed) if speed >= 100 else f"{speed:.3g}"
