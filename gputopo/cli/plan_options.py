"""The options that `plan` and `run` share, and the request that comes of them."""

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from gputopo.cli.choices import require_choice, shown
from gputopo.cli.source import FromOption
from gputopo.planner.request import SPREAD, VARIABLE_UPDATES, Request
from gputopo.values.errors import UsageError

__all__ = [
    "AllReduceOption",
    "ExcludeOption",
    "FromOption",
    "GpusOption",
    "ModelOption",
    "NumGpusOption",
    "PreferPixOption",
    "PsOption",
    "VariableUpdateOption",
    "parse_gpu_list",
    "parse_ps",
    "parse_variable_update",
    "request_from",
]

MOST_GPUS = 1024  # a bound on ranges, so that a typing mistake cannot fill the memory

ModelOption = Annotated[
    str, typer.Option("--model", metavar="NAME", help="The model to train, for example alexnet.")
]
NumGpusOption = Annotated[
    int | None,
    typer.Option("--num-gpus", metavar="N", help="How many GPUs. Default: as many as may be used."),
]
GpusOption = Annotated[
    str | None,
    typer.Option("--gpus", metavar="LIST", help="Only these GPUs, by nvidia-smi index: 0,1 or 0-3."),
]
ExcludeOption = Annotated[
    str | None, typer.Option("--exclude", metavar="LIST", help="Never these GPUs: 2 or 2,5-7.")
]
PreferPixOption = Annotated[
    bool,
    typer.Option("--prefer-pix", help="Choose GPUs behind one PCIe switch (PIX) if one has enough of them."),
]
PsOption = Annotated[
    str,
    typer.Option(
        "--ps", metavar="auto|cpu|gpu:N|gpu:spread", help="Where the variables live with parameter_server."
    ),
]
VariableUpdateOption = Annotated[
    str,
    typer.Option("--variable-update", metavar="|".join(VARIABLE_UPDATES), help="Who holds the variables."),
]
AllReduceOption = Annotated[
    str | None,
    typer.Option(
        "--all-reduce",
        metavar="NAME[#K]",
        help="What adds replicated gradients up: copy, ring, hierarchical, pscpu, psgpu, collective, nccl.",
    ),
]


def parse_gpu_list(text: str | None, *, option: str = "--gpus") -> tuple[int, ...] | None:
    """Read `0,1`, `0-3` or `0-2,6` as GPU indices, in the order given; None stays None.

    Raises UsageError for anything else, and for an index that is named twice.
    """
    if text is None:
        return None
    indices: list[int] = []
    for part in text.split(","):
        indices.extend(_indices_of(part.strip(), text, option))
    twice = next((index for index in indices if indices.count(index) > 1), None)
    if twice is not None:
        raise UsageError(f"{option} {shown(text)} names GPU {twice} twice", "name every GPU once")
    return tuple(indices)


def parse_ps(text: str) -> str:
    """Give `--ps` in its plain form: `auto`, `cpu`, `gpu:spread` or `gpu:N`. Raises UsageError."""
    found = re.fullmatch(r"gpu:([0-9]{1,4})", text)
    if found:
        return f"gpu:{int(found[1])}"
    loose = re.fullmatch(r"/?(?:device:)?gpu[:=_ ]?([0-9]{1,4})", text.lower())
    if loose:
        raise UsageError(f"--ps cannot be {shown(text)}", f"did you mean gpu:{int(loose[1])}?")
    if text == "gpu" or text == "gpu:N":
        raise UsageError(
            f"--ps cannot be {shown(text)}", "name the GPU by its index, such as gpu:0, or take gpu:spread"
        )
    return require_choice("--ps", text, ("auto", "cpu", "gpu:N", SPREAD))


_ELSEWHERE = {
    "distributed_replicated": "it needs several hosts; on one, use --variable-update replicated",
    "distributed_all_reduce": "it needs several hosts; on one, use --variable-update replicated",
    "collective_all_reduce": "use --variable-update replicated --all-reduce collective",
    "horovod": "use --variable-update replicated --all-reduce nccl; horovod is for programs after --",
    "byteps": "use --variable-update replicated; byteps is no longer maintained",
}


def parse_variable_update(text: str) -> str:
    """Give `--variable-update`. Raises UsageError, for modes of other programs with what does the same."""
    if text in _ELSEWHERE:
        raise UsageError(f"gputopo does not have --variable-update {text}", _ELSEWHERE[text])
    found: str = require_choice("--variable-update", text, VARIABLE_UPDATES)
    return found


def request_from(
    *,
    model: str | None = None,
    num_gpus: int | None = None,
    gpus: str | None = None,
    exclude: str | None = None,
    prefer_pix: bool = False,
    ps: str = "auto",
    variable_update: str = "auto",
    all_reduce: str | None = None,
) -> Request:
    """Turn option values, as typed, into what the planner is asked. Raises UsageError."""
    from gputopo.launch.spec import model_names

    if model is not None:
        model_names.read(model)
    if num_gpus is not None and num_gpus < 1:
        raise UsageError(f"--num-gpus cannot be {num_gpus}", "ask for 1 GPU or more")
    return Request(
        num_gpus=num_gpus,
        gpus=parse_gpu_list(gpus),
        exclude=parse_gpu_list(exclude, option="--exclude") or (),
        prefer_pix=prefer_pix,
        ps=parse_ps(ps),
        variable_update=parse_variable_update(variable_update),
        all_reduce=all_reduce,
        model=model,
    )


def _indices_of(part: str, text: str, option: str) -> Sequence[int]:
    found = re.fullmatch(r"([0-9]+)(?:\s*-\s*([0-9]+))?", part)
    if found is None:
        raise UsageError(
            f"{option} cannot be {shown(text)}", "give indices with commas, as nvidia-smi counts: 0,1 or 0-3"
        )
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise UsageError(f"{option} {shown(text)} counts down", f"did you mean {last}-{first}?")
    if last >= MOST_GPUS:
        raise UsageError(
            f"{option} {shown(text)} names GPU {last}", "gputopo inspect shows the GPUs there are"
        )
    return range(first, last + 1)
