"""After a run that ran out of memory: the largest batch per device, by halving, that fits.

The sizes are the batch halved once, twice, ... down to 1; batches that differ by device are halved together.
Where one fits, all smaller ones are assumed to fit too: of the 30 sizes below 2147483647 at most ten are
tried.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from gputopo.launch import failure
from gputopo.launch.spec.run_spec import Lifecycle, RunSpec
from gputopo.launch.supervise.job import Workers
from gputopo.launch.supervise.record import Record
from gputopo.launch.supervise.run_folder import RunFolder
from gputopo.values import schema
from gputopo.values.errors import InputError
from gputopo.values.run.batches import BatchSize, as_typed, batch_words, halved
from gputopo.values.run.events import BatchTried, Noticed, PhaseBegun

# Seconds in which a try may begin. Ours: one of a large batch takes half a minute on CPU devices, and at most
# ten are needed.
SEARCH_S = 120.0

WorkerCommand = Callable[[Path, int], Sequence[str]]
"""Makes the command line of a worker from the path of its spec and the file descriptor for its events."""


def find(
    spec: RunSpec,
    folder: RunFolder,
    record: Record,
    workers: Workers,
    command: WorkerCommand,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Try smaller batches, record each, and release the record's deferred failure with what fits.

    No try begins after `SEARCH_S`; the one that runs then is ended by its own outcome.
    """
    if max(spec.batches) > 1:
        record.add(PhaseBegun(time_s=time.time(), phase="batch search"))
    began = clock()

    def fits(batch_size: BatchSize) -> bool | None:
        left_s = SEARCH_S - (clock() - began)
        if left_s <= 0:
            record.add(Noticed(time_s=time.time(), says=f"the search ends after {SEARCH_S:g} s"))
            return None
        says = f"trying a batch of {batch_words(batch_size)} (tries begin for {left_s:.0f} s more)"
        record.add(Noticed(time_s=time.time(), says=says))
        answer = try_batch(spec, batch_size, folder, workers, command)
        if answer is not None:
            record.add(BatchTried(time_s=time.time(), batch_size=batch_size, fits=answer))
        return answer

    record.release(remedy(spec, *search(spec.batch_size, fits)))


def search(
    batch_size: BatchSize, fits: Callable[[BatchSize], bool | None]
) -> tuple[BatchSize | None, BatchSize | None]:
    """Return the largest size that was seen to fit, and the smallest that was seen not to; None: none was.

    Halved once, twice, four times, eight times, ... until one fits, then between the two, in the middle. With
    an answer to every try the first is the largest that fits, None if not even 1 does.
    `fits` tries a size; None where the answer is unknown, which ends the search.
    """
    halved = list(_halved(batch_size))
    above, below = -1, len(halved)  # places in `halved`: up to `above` none fits, from `below` on all do
    while below - above > 1:
        step = min(max(2 * above + 1, 0), len(halved) - 1) if below == len(halved) else (above + below) // 2
        answer = fits(halved[step])
        if answer is None:
            break
        if answer:
            below = step
        else:
            above = step
    return halved[below] if below < len(halved) else None, halved[above] if above >= 0 else None


def _halved(batch_size: BatchSize) -> Iterator[BatchSize]:
    while halved(batch_size) != batch_size:
        batch_size = halved(batch_size)
        yield batch_size


def trial_of(spec: RunSpec, batch_size: BatchSize) -> RunSpec:
    """Return a run of two steps with another batch, which saves nothing."""
    return msgspec.structs.replace(
        spec,
        task="forward" if spec.task == "eval" else spec.task,
        batch_size=batch_size,
        num_batches=2,
        num_warmup_batches=0,
        detect_warmup=False,
        time_budget_s=None,
        lifecycle=Lifecycle(),
        optimization=msgspec.structs.replace(spec.optimization, on_nan="warn"),
    )


def try_batch(
    spec: RunSpec, batch_size: BatchSize, folder: RunFolder, workers: Workers, command: WorkerCommand
) -> bool | None:
    """Try a batch in a separate worker: one that ran out of memory cannot go on.

    None: it failed for another reason, or a signal stopped it.
    """
    trial = trial_of(spec, batch_size)
    name = f"trial-{'-'.join(map(str, batch_size)) if isinstance(batch_size, tuple) else batch_size}"
    file, log = folder.path / f"{name}.json", folder.path / f"{name}.log"
    record = Record(None, lambda event: None)
    try:
        schema.write(file, trial)
        workers.run(trial, lambda events: command(file, events), record, log)
    except (InputError, OSError):  # the disk is full: what is known already is still reported
        return None
    finally:
        for left in (file, log):
            with suppress(OSError):
                left.unlink(missing_ok=True)
    if record.failure is None:
        return True
    return False if record.failure.kind == failure.OUT_OF_MEMORY else None


def remedy(spec: RunSpec, found: BatchSize | None, failed: BatchSize | None) -> str:
    """What to do. `found`: the largest batch seen to fit; `failed`: the smallest seen not to, or None."""
    if found is not None and found == halved(failed or spec.batch_size):
        return f"use --batch-size {as_typed(found)}: the largest that fits, by halving"
    if found is not None:
        return f"use --batch-size {as_typed(found)}, which fits; not all larger ones were tried"
    if failed is None:
        return failure.less_memory(spec)
    if halved(failed) != failed:
        return f"use a --batch-size below {as_typed(failed)}, which does not fit; smaller ones were not tried"
    less = "fewer devices (--num-gpus) or " if len(spec.devices) > 1 and spec.backend == "cpu" else ""
    return f"even --batch-size 1 does not fit: use {less}a smaller model"
