"""Options of a plan: which GPUs to use, and where the variables are."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec

from gputopo.values.errors import UsageError
from gputopo.values.option import MAX_FLOAT, Option, require_choice, shown
from gputopo.values.run.all_reduce import parse
from gputopo.values.run.batches import AUTO
from gputopo.values.run.plan import VariableUpdate

MAX_GPUS = 1024  # limit of ranges, so that a typing mistake cannot fill the memory
VARIABLE_UPDATES = ("auto", *get_args(VariableUpdate))
_COPIES = "each device has a copy of the variables, on one host and on several"
# Modes of other programs for several hosts, with their equivalents here and a note.
_SAME_AS: dict[str, tuple[VariableUpdate, str]] = {
    "distributed_replicated": (
        "parameter_server",
        "the master copies are on --ps, and each device receives a copy in every step",
    ),
    "distributed_all_reduce": ("replicated", _COPIES),
    "collective_all_reduce": ("replicated", f"{_COPIES}; --all-reduce collective for TensorFlow's op"),
    "horovod": ("replicated", f"{_COPIES}; no Horovod is needed, and programs that use it run after --"),
}
_ELSEWHERE = {"byteps": "use --variable-update replicated; byteps is no longer maintained"}


def parse_gpu_list(flag: str, text: str) -> tuple[int, ...]:
    """Read `0,1`, `0-3` or `0-2,6` as GPU indices, in the order given.

    Raises UsageError for anything else, and for a repeated index.
    """
    indices: list[int] = []
    for part in text.split(","):
        indices.extend(_indices_of(part.strip(), text, flag))
    twice = next((index for index in indices if indices.count(index) > 1), None)
    if twice is not None:
        raise UsageError(f"{flag} {shown(text)} lists GPU {twice} twice", "list every GPU once")
    return tuple(indices)


def parse_ps(flag: str, text: str) -> str:
    """Read `--ps` as `auto`, `cpu`, `gpu:spread`, `gpu:N` or `host:N`. Raises UsageError."""
    from gputopo.values.run.plan import SPREAD

    match = re.fullmatch(r"(gpu|host):([0-9]{1,4})", text)
    if match:
        return f"{match[1]}:{int(match[2])}"
    loose = re.fullmatch(r"/?(?:device:)?gpu[:=_ ]?([0-9]{1,4})", text.lower())
    if loose:
        raise UsageError(f"{flag} cannot be {shown(text)}", f"did you mean gpu:{int(loose[1])}?")
    if text == "gpu" or text == "gpu:N":
        raise UsageError(
            f"{flag} cannot be {shown(text)}", "use the index of the GPU, such as gpu:0, or gpu:spread"
        )
    return require_choice(flag, text, ("auto", "cpu", "gpu:N", SPREAD, "host:N"))


def update_of(typed: str) -> str:
    """Return the mode typed for `--variable-update`, or the equivalent of another program's mode."""
    return _SAME_AS[typed][0] if typed in _SAME_AS else typed


def update_note(typed: str) -> str | None:
    """Return a sentence on the equivalent of another program's mode; None for a mode of gputopo."""
    same = _SAME_AS.get(typed)
    return None if same is None else f"--variable-update {typed} is {same[0]} here: {same[1]}"


def parse_variable_update(flag: str, text: str) -> str:
    """Read `--variable-update`; for a mode of another program return the equivalent. Raises UsageError."""
    if text in _SAME_AS:
        return update_of(text)
    if text in _ELSEWHERE:
        raise UsageError(f"gputopo does not have {flag} {text}", _ELSEWHERE[text])
    update: str = require_choice(flag, text, VARIABLE_UPDATES)
    return update


def parse_all_reduce(_flag: str, text: str) -> str:
    """Return `--all-reduce` as typed, after checking it. Raises UsageError."""
    parse(text)
    return text


def parse_speeds(flag: str, text: str) -> tuple[float, ...]:
    """Read one speed, or one for each GPU: `1560` or `1560,1560,1630`. Raises UsageError."""
    try:
        speeds = tuple(float(part) for part in text.split(","))
    except ValueError:
        speeds = ()
    if not speeds or not all(0 < speed <= MAX_FLOAT for speed in speeds):
        raise UsageError(
            f"{flag} cannot be {shown(text)}", "give images/sec above 0: one number, or one for each GPU"
        )
    return speeds


def parse_num_gpus(flag: str, text: str) -> dict[str, Any]:
    """Read `--num-gpus`: a number, auto, or auto with the minimum gain of a doubling: `auto:0.3`.

    Raises UsageError.
    """
    word, has_share, share = text.lower().partition(":")
    if word != AUTO:
        return {"num_gpus": Option(flag, "Number of GPUs, or auto", min=1).whole(text)}
    if not has_share:
        return {"num_gpus": AUTO}
    try:
        return {"num_gpus": AUTO, "gain": Option(flag, "", min=0, max=1).number(share)}
    except UsageError as error:
        raise UsageError(f"{flag} cannot be {shown(text)}", "write auto:0.3; the share is 0 to 1") from error


def _indices_of(part: str, text: str, option: str) -> Sequence[int]:
    match = re.fullmatch(r"([0-9]+)(?:\s*-\s*([0-9]+))?", part)
    if match is None:
        raise UsageError(
            f"{option} cannot be {shown(text)}", "give indices with commas, as nvidia-smi counts: 0,1 or 0-3"
        )
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise UsageError(f"{option} {shown(text)} counts down", f"did you mean {last}-{first}?")
    if last >= MAX_GPUS:
        raise UsageError(f"{option} {shown(text)} lists GPU {last}", "gputopo inspect lists the GPUs")
    return range(first, last + 1)


GPUS = Option("--gpus", "Use only these GPUs: 0,1 or 0-3", detail="Indices as in nvidia-smi", value="LIST")
EXCLUDE = Option("--exclude", "Exclude these GPUs: 2 or 2,5-7", value="LIST")
MODEL = Option("--model", "Model to train, such as alexnet", value="NAME")


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a plan: fields of gputopo.planner.Request, which a help page does not load."""

    num_gpus: Annotated[
        int | Literal["auto"] | None,
        parse_num_gpus,
        Option(
            "--num-gpus",
            "Number of GPUs, or auto to stop adding GPUs when they no longer help",
            detail="auto:0.3 adds GPUs while they bring at least 30% of their ideal gain; auto: 50%",
            value="N|auto[:SHARE]",
            default="all usable GPUs",
        ),
    ] = None
    gain: float | None = None  # from --num-gpus auto:0.3
    gpus: Annotated[tuple[int, ...] | None, parse_gpu_list, GPUS] = None
    exclude: Annotated[tuple[int, ...] | None, parse_gpu_list, EXCLUDE] = None
    prefer_pix: Annotated[bool, Option("--prefer-pix", "Prefer GPUs behind one PCIe switch (PIX)")] = False
    ps: Annotated[
        str,
        parse_ps,
        Option("--ps", "Device that holds the variables", value="auto|cpu|gpu:N|gpu:spread|host:N"),
    ] = "auto"
    variable_update: Annotated[
        str,
        parse_variable_update,
        Option(
            "--variable-update",
            "Placement of variables",
            detail="Shared (parameter_server), a copy on each GPU (replicated), or separate trainings "
            "(independent)",
            value="auto|parameter_server|replicated|independent",
        ),
    ] = "auto"
    all_reduce: Annotated[
        str | None,
        parse_all_reduce,
        Option(
            "--all-reduce",
            "Reduction of replicated gradients, such as nccl or ring",
            detail="One of copy, ring, hierarchical, pscpu, psgpu, collective, nccl, nccl_op, "
            "tf_hierarchical, one_device; #K: in K parts",
            value="NAME[#K]",
        ),
    ] = None
    single_gpu_images_per_sec: Annotated[
        tuple[float, ...],
        parse_speeds,
        Option(
            "--single-gpu-images-per-sec",
            "Measured speed of one GPU",
            detail="One number for all GPUs, or one per GPU",
            value="X[,X...]",
        ),
    ] = ()
    no_history: Annotated[
        bool,
        Option(
            "--no-history",
            "Ignore earlier runs and saved bandwidth of this machine",
            more=True,
        ),
    ] = False
