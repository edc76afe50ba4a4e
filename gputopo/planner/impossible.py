"""The best plan without the option that makes a request impossible. Pure."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gputopo.planner.request import Request, ranges
from gputopo.values.errors import GputopoError, NoPlanError, UsageError
from gputopo.values.run.batches import as_typed
from gputopo.values.run.plan import Candidate, Plan, mode_words


def with_best(
    error: NoPlanError | UsageError, request: Request, choose: Callable[[Request], Plan]
) -> GputopoError:
    """Return the error with the best plan without the option that alone is in the way, if one is.

    `choose`: plans. Where there are several such options, the first of `_relaxed`.
    """
    for option, fields in _relaxed(request):
        try:
            found = choose(msgspec.structs.replace(request, **fields)).choice
        except GputopoError:
            continue
        return type(error)(error.what, f"{error.hint}; without {option}: {_in_words(found)}")
    return error


def _relaxed(request: Request) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the options that restrict the choice, each with the fields of a request without it."""
    if isinstance(request.num_gpus, int):
        yield f"--num-gpus {request.num_gpus}", {"num_gpus": None}
    if request.ps != "auto":
        yield f"--ps {request.ps}", {"ps": "auto"}
    if request.all_reduce is not None:
        yield f"--all-reduce {request.all_reduce}", {"all_reduce": None}
    if request.variable_update != "auto":
        yield f"--variable-update {request.variable_update}", {"variable_update": "auto"}
    if isinstance(request.batch_size, tuple):
        yield f"--batch-size {as_typed(request.batch_size)}", {"batch_size": None}
    if request.exclude:
        yield f"--exclude {ranges(request.exclude)}", {"exclude": ()}
    if request.gpus:
        size = len(request.gpus) if request.num_gpus is None else request.num_gpus
        yield f"--gpus {','.join(map(str, request.gpus))}", {"gpus": None, "num_gpus": size}


def _in_words(choice: Candidate) -> str:
    gpus = f"GPU {choice.gpus[0]}" if len(choice.gpus) == 1 else f"GPUs {ranges(choice.gpus)}"
    speed = "" if choice.images_per_sec is None else f", {choice.images_per_sec:.0f} images/sec"
    return f"{gpus}, {mode_words(choice)}{speed}"
