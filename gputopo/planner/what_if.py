"""What a changed machine would do: the plan before and after, and the single change that pays most. Pure."""

from collections.abc import Callable, Sequence

import msgspec

from gputopo.planner.explained import require_prediction
from gputopo.planner.request import Request
from gputopo.prediction.what_if import ChangedMachine, changed, full_links, single_changes
from gputopo.values.errors import UsageError
from gputopo.values.machine import Machine
from gputopo.values.run.plan import Candidate, Plan, WhatIf

# A change that brings less is within the error of any prediction.
PAYS = 0.01
# Models with which the best change is compared beside the one that is planned for: of many bytes, of few.
OTHER_MODELS = ("alexnet", "resnet50")

_COMPARES = "--what-if compares predicted images/sec"

Choose = Callable[[Machine, Request], Plan]


def what_if(
    machine: Machine, request: Request, changes: Sequence[str], choose: Choose, before: Plan
) -> WhatIf:
    """Return the plan for the machine as it is and as it would be. `choose` plans, `before` is its plan.

    Raises UsageError for a change that cannot be, or where nothing is predicted.
    """
    require_prediction(before, _COMPARES)
    after = _plan_after(changed(machine, changes), request, choose)
    require_prediction(after[1], _COMPARES)
    return _found(changes, before, *after)


def best_change(machine: Machine, request: Request, choose: Choose, before: Plan) -> WhatIf:
    """Return the single change that pays most; all of the links together where none pays alone.

    No change where none pays. Raises UsageError where nothing is predicted.
    """
    require_prediction(before, _COMPARES)
    singles = [(change,) for change in single_changes(machine)]
    best = _best(singles, machine, request, choose, before)
    if best is None:
        best = _best([full_links(machine)], machine, request, choose, before)
    if best is None:
        return WhatIf(changes=(), before=_bare(before.choice), after=_bare(before.choice), asked=False)
    others: dict[str, float] = {}
    for model in OTHER_MODELS:
        if model != request.model:
            share = _share_of(model, best.changes, machine, request, choose)
            others |= {} if share is None else {model: share}
    return msgspec.structs.replace(best, asked=False, other_models=others)


def _best(
    attempts: Sequence[tuple[str, ...]], machine: Machine, request: Request, choose: Choose, before: Plan
) -> WhatIf | None:
    found = [what_if(machine, request, changes, choose, before) for changes in attempts]
    return max((one for one in found if one.share >= PAYS), key=lambda one: one.share, default=None)


def _share_of(
    model: str, changes: Sequence[str], machine: Machine, request: Request, choose: Choose
) -> float | None:
    """Return what changes bring to another model with the batch that is its own; None: not predicted."""
    other = msgspec.structs.replace(
        request, model=model, workload=None, batch_size=None, single_gpu_images_per_sec=()
    )
    before = choose(machine, other)
    if before.prediction is None:
        return None
    return what_if(machine, other, changes, choose, before).share


def _plan_after(after: ChangedMachine, request: Request, choose: Choose) -> tuple[ChangedMachine, Plan]:
    given = request.single_gpu_images_per_sec
    if given and after.replaced:
        named = set(request.gpus or (gpu.index for gpu in after.machine.gpus))
        if named - after.replaced:
            raise UsageError(
                "--single-gpu-images-per-sec is the speed of GPUs that --what-if replaces",
                "leave it out, or replace all GPUs",
            )
        request = msgspec.structs.replace(request, single_gpu_images_per_sec=())
    return after, choose(after.machine, request)


def _found(changes: Sequence[str], before: Plan, after: ChangedMachine, plan: Plan) -> WhatIf:
    old, new = before.choice.images_per_sec or 0.0, plan.choice.images_per_sec or 0.0
    assert plan.prediction is not None
    return WhatIf(
        changes=tuple(changes),
        before=_bare(before.choice),
        after=_bare(plan.choice),
        share=round(new / old - 1, 4) if old else 0.0,
        basis=(*after.notes, f"speed of one GPU: {plan.prediction.single_gpu_source}"),
    )


def _bare(candidate: Candidate) -> Candidate:
    return msgspec.structs.replace(candidate, reasons=())
