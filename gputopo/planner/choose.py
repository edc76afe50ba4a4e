"""Which GPUs a job uses and where its variables are: a function of only the machine and the request.

All sets of GPUs are compared: the sets with the fewest GPUs in use or in error come first, then the sets with
the fastest GPUs, then the nearest. Of equal sets the one with the lowest indices wins.
`gputopo.planner.evidence` decides where the variables are.
"""

import functools
import re
from collections.abc import Mapping, Sequence

import msgspec

from gputopo.planner.candidates import Candidates
from gputopo.planner.chooser import Basis, Chooser, without_prediction
from gputopo.planner.evidence import published_speeds
from gputopo.planner.how_many import best_of_fewer, how_many, unequal
from gputopo.planner.request import Request, check, given_speeds, gpus_in_words, mean_batch
from gputopo.planner.selection import MachineFacts
from gputopo.prediction import (
    DEFAULT_PROGRAM,
    Figure,
    ModelCosts,
    Placement,
    Speed,
    require_program,
    single_gpu_speeds,
)
from gputopo.values.errors import NoPlanError
from gputopo.values.machine import Machine
from gputopo.values.run.batches import require_one_each
from gputopo.values.run.plan import Candidate, Learned, Plan, StepLine
from gputopo.workload import require_workload

# `env $(gputopo plan --format env) PROGRAM` splits at blanks. Allow nothing else from a capture in there.
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f-]{1,64}", re.IGNORECASE)


def plan(
    machine: Machine,
    request: Request,
    *,
    unavailable: Mapping[int, str] = {},
    history: Sequence[Figure] = (),
    learned: Learned | None = None,
    keep: int | None = None,
) -> Plan:
    """Choose GPUs and a placement of the variables. At most `keep` candidates are listed.

    `unavailable`: GPUs that this process may not use, with reasons. `history`: earlier runs of one GPU;
    `learned`: what earlier runs of several GPUs show. Neither is used with `no_history`.

    The same machine and request give the same plan. With `ps` gpu:N the set contains GPU N. Raises UsageError
    for options that contradict one another or the machine, and NoPlanError if too few GPUs can be used. Both
    messages say what would work.
    """
    if request.no_history:
        history, learned = (), None
    check(request, machine)
    basis = basis_of(machine, request, history, learned)
    facts, count = MachineFacts(machine), None
    if request.num_gpus == "auto":
        count = how_many(facts, request, unavailable, basis)
        request = msgspec.structs.replace(request, num_gpus=count.num_gpus, gain=None)
    selection = Chooser(facts, request, unavailable, basis)
    require_one_each(request.batch_size or 1, selection.size, "GPU")
    search = Candidates(selection)
    candidates = search.best(keep)
    choice = candidates[0]
    if request.fits and basis.missing is None:
        from gputopo.planner.memory import require_memory  # a plan without a run needs no memory

        workload = request.workload or require_workload(request.model or "")
        each = selection.batches(choice.gpus) or (basis.batch,) * len(choice.gpus)
        batch_by_gpu = dict(zip(choice.gpus, each, strict=True))
        require_memory(machine, workload, batch_by_gpu, request.precision, history)
    is_predicted = choice.images_per_sec is not None
    fewer = best_of_fewer(selection) if is_predicted and keep != 1 else None
    return Plan(
        choice=choice,
        candidates=candidates,
        warnings=(*selection.unavailable_reasons, *search.warnings(choice.gpus)),
        refused=(*selection.left_out, *selection.unmet(choice.gpus)),
        environment=plan_environment(machine, choice.gpus),
        model=request.model,
        source=machine.source,
        prediction=search.prediction(candidates, fewer),
        how_many=count,
        unequal=unequal(selection, choice.gpus) if is_predicted else None,
        line=_timeline(selection, choice) if request.explain and is_predicted else None,
    )


def _timeline(chooser: Chooser, choice: Candidate) -> StepLine:
    from gputopo.prediction import step_timeline  # only --explain shows it

    compute_s = max(chooser.seconds_alone(choice.gpus).values())
    return step_timeline(chooser.predictor, choice.gpus, compute_s, Placement.of(choice))


def plan_environment(machine: Machine, gpus: Sequence[int]) -> dict[str, str]:
    """Return the environment variables with which a program sees only these GPUs, in this order.

    They must be set before TensorFlow loads. GPUs are given by UUID if all UUIDs are known, because CUDA's
    default order is by speed and skips GPUs that do not answer. Otherwise they are given by index, and
    `CUDA_DEVICE_ORDER=PCI_BUS_ID` makes CUDA's indices equal to nvidia-smi's. See "CUDA Environment
    Variables" in NVIDIA's CUDA programming guide.

    Raises NoPlanError if a UUID is unknown and a GPU of this machine does not answer, because CUDA's indices
    then differ.
    """
    uuids = {gpu.index: gpu.uuid for gpu in machine.gpus}
    named = [uuid for gpu in gpus if (uuid := uuids.get(gpu)) and _UUID.fullmatch(uuid)]
    lost = [gpu.index for gpu in machine.gpus if gpu.lost]
    if machine.source == "live" and lost and len(named) != len(gpus):
        raise NoPlanError(
            f"no answer from {gpus_in_words(lost)}: CUDA renumbers the others, and a UUID is unknown",
            "see nvidia-smi -L, and set CUDA_VISIBLE_DEVICES to the UUIDs of the GPUs to use",
        )
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(named if len(named) == len(gpus) else map(str, gpus)),
    }


def basis_of(machine: Machine, request: Request, history: Sequence[Figure], learned: Learned | None) -> Basis:
    """Return what steps are predicted from, or what is missing.

    Raises UsageError for an unknown program.
    """
    program = require_program(request.program)
    if request.model is None or not request.predicts:
        return without_prediction("")
    if ":" in request.model and request.workload is None:
        return without_prediction(f"the variables of {request.model} are not known before it is built")
    if request.all_reduce is not None and not Placement("replicated", None, request.all_reduce).traffic:
        return without_prediction(f"no figure of {request.all_reduce} is published")
    workload = request.workload or require_workload(request.model)
    batch = mean_batch(request.batch_size, workload.gpu_batch)
    values, everyone = request.single_gpu_images_per_sec, sorted(gpu.index for gpu in machine.gpus)
    given = given_speeds(values, everyone if len(values) == 1 else request.gpus or everyone)

    @functools.cache
    def speeds_with(batch: int) -> dict[int, Speed]:
        return single_gpu_speeds(machine, workload, batch, request.precision, given=given, history=history)

    if program.name != DEFAULT_PROGRAM:
        learned = None  # gputopo's runs do not apply to other programs
    past = () if learned is None else learned.speeds
    return Basis(
        ModelCosts.of(workload),
        program,
        batch,
        speeds_with(batch),
        speeds_with,
        learned,
        tuple(
            speed
            for speed in ((*past, *published_speeds(machine)) if request.by_measurements else ())
            if (speed.model, speed.precision) == (request.model, request.precision)
        ),
    )
