"""Tables of a plan: what other numbers of GPUs would do, and what a changed machine would."""

import re

from gputopo.report.document import Block, Rows, Table
from gputopo.report.layout import plain
from gputopo.values.index_ranges import index_ranges
from gputopo.values.run.batches import plain as plain_batch
from gputopo.values.run.plan import Candidate, GroupSpeed, HowMany, Unequal, WhatIf


def how_many_words(how_many: HowMany) -> str:
    """Return how many GPUs were chosen and why: `2 GPUs: 4 are slower than 2: ...`."""
    count = how_many.num_gpus
    return f"{count} {'GPU' if count == 1 else 'GPUs'}: {how_many.reason}"


def how_many_blocks(how_many: HowMany) -> list[Block]:
    """Return how many GPUs were chosen and why, and the predicted speed of 1, 2, 4, ... GPUs."""
    rows = [
        (
            str(one.num_gpus),
            f"{one.images_per_sec:.0f}",
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
        noun = "GPU" if len(better.gpus) == 1 else "GPUs"
        words = f"{noun} {index_ranges(better.gpus)} alone would be faster: {unequal.use}"
    rows = [
        (
            index_ranges(one.gpus),
            _batches(one),
            f"{one.images_per_sec:.0f}",
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


def what_if_blocks(what_if: WhatIf, model: str | None) -> list[Block]:
    """Return the predicted images/sec before and after changes, and what they rest on."""
    if not what_if.changes:
        return ["no single change of a link, of NVLink or of ACS pays: less than 1%"]
    before, after = what_if.before, what_if.after
    words = "; ".join(map(change_words, what_if.changes))
    if not what_if.asked:
        words += f": {_number(after)} instead of {_number(before)} images/sec with {model}"
        words += "".join(
            f"; {'nothing' if abs(share) < 0.005 else f'{share:+.0%}'} for {other}"
            for other, share in what_if.other_models.items()
        )
    rows = (("Before", _range(before)), ("After", f"{_range(after)}, {what_if.share:+.1%}"))
    return [words, Rows((*rows, ("Rests on", "; ".join(what_if.basis))))]


def change_words(change: str) -> str:
    """Return a change in words: `GPU 3 into an x16 slot`."""
    if found := re.fullmatch(r"gpu([0-9]+): x([0-9]+)", change):
        return f"GPU {found[1]} into an x{found[2]} slot"
    if found := re.fullmatch(r"all: x([0-9]+)", change):
        return f"all GPUs into x{found[1]} slots"
    if found := re.fullmatch(r"nvlink ([0-9]+)-([0-9]+)", change):
        return f"NVLink between GPUs {found[1]} and {found[2]}"
    return "ACS off" if change == "acs off" else plain(change)


def _number(candidate: Candidate) -> str:
    return f"{candidate.images_per_sec or 0.0:,.0f}"


def _range(candidate: Candidate) -> str:
    low, high = candidate.images_per_sec_low or 0.0, candidate.images_per_sec_high or 0.0
    return (
        f"{_number(candidate)} images/sec ({low:,.0f} to {high:,.0f}), GPU {index_ranges(candidate.gpus)}, "
        f"limited by {candidate.limited_by}"
    )
