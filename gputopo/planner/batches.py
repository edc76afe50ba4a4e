"""Batches of the GPUs of a plan: equal, one for each, or in proportion to their speeds. Pure.

In synchronous training all GPUs end a step together, so unequal ones are best used where each has as many
examples as it computes in the same time.
"""

from collections.abc import Mapping, Sequence

from gputopo.planner.request import Request
from gputopo.values.run.batches import AUTO, AskedBatch, as_typed, batches_of, plain, shares

# Speeds of one GPU within this count as equal: two runs of one job differ as much.
SAME_SPEED = 0.03


def mean_batch(asked: AskedBatch | None, of_model: int) -> int:
    """Return the mean examples of a GPU: with auto the batch of the model, as where nothing is asked for."""
    if asked is None or asked == AUTO:
        return of_model
    each = batches_of(asked, 1)
    return max(1, round(sum(each) / len(each)))


def batches(asked: AskedBatch | None, mean: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Return the examples of each GPU by what was asked for. `speeds`: images/sec of each GPU alone.

    Those of auto add up to those of equal batches. GPUs of one speed have equal batches.
    """
    if isinstance(asked, tuple):
        return asked
    if asked == AUTO and min(speeds) < (1 - SAME_SPEED) * max(speeds):
        return shares(mean * len(speeds), speeds)
    return (mean,) * len(speeds)


def speed_classes(speeds: Mapping[int, float]) -> list[list[int]]:
    """Return GPUs of one speed together, the fastest first."""
    classes: list[list[int]] = []
    for gpu in sorted(speeds, key=lambda gpu: (-speeds[gpu], gpu)):
        if classes and speeds[gpu] >= (1 - SAME_SPEED) * speeds[classes[-1][0]]:
            classes[-1].append(gpu)
        else:
            classes.append([gpu])
    return classes


def batch_reasons(request: Request, each: Sequence[int], *, known: bool) -> tuple[str, ...]:
    """Return how the batches of `--batch-size auto` were chosen. `known`: the speeds of the GPUs are."""
    if request.batch_size != AUTO or len(each) == 1:
        return ()
    batch = plain(each) if each else None
    if isinstance(batch, tuple):
        together = f"{sum(batch)} examples together, as with equal batches"
        return (f"batches {as_typed(batch)}: in proportion to the speed of each GPU alone; {together}",)
    why = "the GPUs are of one speed" if known else "no speed of one GPU is known"
    return (f"--batch-size auto: equal batches, as {why}",)
