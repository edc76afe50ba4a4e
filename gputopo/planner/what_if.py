"""What a changed machine would do: the plan before and after, and the single change that helps most."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from gputopo.planner.changes import as_expected, changed, changes_of, full_links, single_changes
from gputopo.planner.reasons import require_prediction
from gputopo.planner.request import Request
from gputopo.values.errors import UsageError
from gputopo.values.machine import Machine
from gputopo.values.run.plan import Candidate, Plan, WhatIf

# A smaller gain is within the error of any prediction.
PAYS = 0.01

_COMPARES = "--what-if compares predicted images/sec"

Choose = Callable[[Machine, Request], Plan]


def effect_of_changes(machine: Machine, request: Request, texts: Iterable[str], choose: Choose) -> WhatIf:
    """Return the plans before and after the changes in some texts; without any, after the best change.

    `choose` makes a plan. Raises UsageError for an impossible change, or if nothing is predicted.
    """
    changes = changes_of(texts)
    return what_if(machine, request, changes, choose) if changes else best_change(machine, request, choose)


def what_if(machine: Machine, request: Request, changes: Sequence[str], choose: Choose) -> WhatIf:
    """Return the plans before and after the changes, with links as expected. `choose` makes a plan.

    Raises UsageError for an impossible change, or if nothing is predicted.
    """
    request = msgspec.structs.replace(request, by_measurements=False)
    machine = as_expected(machine)
    after = changed(machine, changes)
    if request.single_gpu_images_per_sec and after.replaced:
        named = set(request.gpus or (gpu.index for gpu in after.machine.gpus))
        if named - after.replaced:
            raise UsageError(
                "--single-gpu-images-per-sec is the speed of the current GPUs, which --what-if replaces",
                "remove it, or replace all GPUs",
            )

    def plans(request: Request) -> tuple[Plan, Plan]:
        given = () if after.replaced else request.single_gpu_images_per_sec
        later = msgspec.structs.replace(request, single_gpu_images_per_sec=given)
        return choose(machine, request), choose(after.machine, later)

    before, plan = plans(request)
    require_prediction(before, _COMPARES)
    require_prediction(plan, _COMPARES)
    assert before.prediction is not None
    assert plan.prediction is not None
    share, pays_at = _share(before, plan), None
    if share < PAYS and isinstance(request.batch_size, int | None):
        halves = [before.prediction.batch_size >> times for times in range(1, 12)]
        of_batch = (msgspec.structs.replace(request, batch_size=size) for size in halves if size)
        pays_at = next((smaller.batch_size for smaller in of_batch if _share(*plans(smaller)) >= PAYS), None)
    return WhatIf(
        changes=tuple(changes),
        before=_bare(before.choice),
        after=_bare(plan.choice),
        share=share,
        basis=(*after.notes, f"speed of one GPU: {plan.prediction.single_gpu_source}"),
        pays_at_batch=pays_at if isinstance(pays_at, int) else None,
    )


def _share(before: Plan, after: Plan) -> float:
    """Return the share of images/sec that a change adds."""
    old, new = before.choice.images_per_sec or 0.0, after.choice.images_per_sec or 0.0
    return round(new / old - 1, 4) if old else 0.0


def best_change(machine: Machine, request: Request, choose: Choose) -> WhatIf:
    """Return the single change that helps most; if none does, all link changes together.

    If these do not help either, return the change that helps at the largest smaller batch, else no change.
    Raises UsageError if nothing is predicted.
    """
    machine = as_expected(machine)
    tries = [(change,) for change in single_changes(machine)]
    effects = [what_if(machine, request, changes, choose) for changes in tries]
    links = full_links(machine)
    if links and not any(effect.share >= PAYS for effect in effects):
        effects.append(what_if(machine, request, links, choose))
    best = max(effects, key=lambda effect: (max(effect.share, PAYS), effect.pays_at_batch or 0), default=None)
    if best is None or (best.share < PAYS and best.pays_at_batch is None):
        before = _bare(choose(machine, msgspec.structs.replace(request, by_measurements=False)).choice)
        return WhatIf(changes=(), before=before, after=before, asked=False)
    return msgspec.structs.replace(best, asked=False)


def _bare(candidate: Candidate) -> Candidate:
    return msgspec.structs.replace(candidate, reasons=())
