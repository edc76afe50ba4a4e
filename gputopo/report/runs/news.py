"""Events of a run other than its steps, as one line each."""

from collections.abc import Sequence

from gputopo.report import units
from gputopo.runs.devices import short_name_of
from gputopo.values.index_ranges import index_ranges
from gputopo.values.run.batches import batch_words
from gputopo.values.run.events import (
    Anomaly,
    AnomalyOver,
    BatchTried,
    CheckpointSaved,
    Device,
    Evaluated,
    Event,
    Exported,
    LossNotFinite,
    Noticed,
    PhaseBegun,
    RankFailed,
    Restarted,
    Resumed,
    Silent,
    Traced,
)


def news(event: Event, devices: Sequence[Device] = ()) -> str | None:
    """Return the line for an event that a user wants to read at once, None for all others.

    `devices`: of the run, to name those of several hosts.
    """
    match event:
        case Anomaly() | AnomalyOver() | Noticed() | Restarted():
            return event.says
        case RankFailed():
            return f"{event.kind}: {event.cause}"
        case PhaseBegun(phase="end"):
            return "ending after this step; Ctrl-C again ends it at once"
        case PhaseBegun(phase="regrouping"):
            return "another host has failed; waiting for those that are left"
        case PhaseBegun(phase="batch search"):
            return "out of memory; halving the batch until it fits (Ctrl-C ends the search)"
        case Silent(rank=rank) if rank > 0:
            host = next((one.host for one in devices if one.rank == rank), None)
            return f"for {event.seconds:.0f} s the process of {host or f'rank {rank}'} {event.process}"
        case Silent():
            return f"no news for {event.seconds:.0f} s, in {event.during}: the worker {event.process}"
        case Resumed():
            return f"resumed after {units.counted(event.steps, 'step')}: {event.path}"
        case CheckpointSaved():
            size, took = units.size(event.bytes), units.seconds(event.seconds)
            return f"checkpoint after {units.counted(event.steps, 'step')}: {event.path} ({size}, {took})"
        case Evaluated():
            return evaluated_words(event)
        case Exported():
            return f"exported: {event.path} ({', '.join(event.formats)})"
        case Traced():
            return f"traced {steps_words(event.steps)}: {event.path}"
        case LossNotFinite():
            hosted = {one.tower: short_name_of(one) for one in devices if one.host is not None}
            towers = ", ".join(hosted.get(tower, str(tower)) for tower in event.towers)
            towers = towers if hosted else f"tower {towers}"
            since = f"from step {event.step} on" if event.step > 0 else "from the warm-up on"
            return f"the loss is {event.value} {since} ({towers})"
        case BatchTried():
            return f"a batch of {batch_words(event.batch_size)} {'fits' if event.fits else 'does not fit'}"
    return None


def steps_words(numbers: Sequence[int]) -> str:
    """Write which steps: `step 2`, `steps 4-9,11`."""
    return f"step{'' if len(numbers) == 1 else 's'} {index_ranges(numbers)}"


def evaluated_words(event: Evaluated) -> str:
    """Write how well a model did: `top-1 71.20 %, top-5 90.10 %, loss 1.2, 50000 examples (imagenet)`."""
    top5 = "" if event.top5 is None else f", top-5 {100 * event.top5:.2f} %"
    after = "" if event.steps is None else f" after {units.counted(event.steps, 'step')}"
    return (
        f"top-1 {100 * event.top1:.2f} %{top5}, loss {units.loss(event.loss)}, "
        f"{event.examples} examples ({event.data}){after}"
    )
