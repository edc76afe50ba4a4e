"""The options of `gputopo bandwidth`, and which of them go together."""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from gputopo.cli.choices import require_choice, shape_of, shown
from gputopo.cli.plan_options import parse_gpu_list
from gputopo.values.bandwidth import Level
from gputopo.values.errors import UsageError

if TYPE_CHECKING:
    from gputopo.findings import Severity

Shape = Literal["table", "json", "markdown"]
FORMATS: tuple[Shape, ...] = ("table", "json", "markdown")
FAIL_ON: "tuple[Severity, ...]" = ("warning", "error")

GpusOption = Annotated[
    str | None,
    typer.Option("--gpus", metavar="LIST", help="Only these GPUs, by nvidia-smi index: 0,1 or 0-3."),
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="What matters most, within a minute on eight GPUs. The default.")
]
FullOption = Annotated[
    bool,
    typer.Option("--full", help="Everything: more repeats, all message sizes, far memory. Takes minutes."),
]
NumaOption = Annotated[
    str | None,
    typer.Option("--numa", metavar="NODE", help="Host memory on this node. Default: each GPU's own."),
]
SourcesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Judge this instead of measuring: what bandwidthTest, p2pBandwidthLatencyTest or nvbandwidth "
        "wrote, or gputopo's own JSON; with a capture of the machine beside it. May be given several times.",
    ),
]
SaveOption = Annotated[
    bool,
    typer.Option(
        "--save",
        help="File the result for this machine, so that plan and run use it; with --from for the machine "
        "that was read.",
    ),
]
BaselineOption = Annotated[
    bool,
    typer.Option("--baseline", help="Show only what changed beyond noise since the result saved last."),
]
AllreduceOption = Annotated[
    bool,
    typer.Option("--allreduce", help="Time the reduction of a model's gradients instead (needs TensorFlow)."),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Whose gradients --allreduce adds up.")
]
MethodOption = Annotated[
    str | None,
    typer.Option("--all-reduce", metavar="METHOD", help="Only this method. Default: each that there is."),
]
MatricesOption = Annotated[
    bool,
    typer.Option("--matrices", help="Show each way between GPUs as a matrix, not only how far it reaches."),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="|".join(FORMATS),
        help="How to print; markdown for bug reports.",
        show_default="table",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
FailOnOption = Annotated[
    str | None,
    typer.Option(
        "--fail-on",
        metavar="|".join(FAIL_ON),
        help="Exit with 1 on a finding this severe; with --baseline, if anything got worse.",
    ),
]


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asked for, checked."""

    gpus: tuple[int, ...] | None = None
    level: Level = "quick"
    numa: int | None = None
    sources: tuple[str, ...] = ()
    save: bool = False
    baseline: bool = False
    model: str | None = None  # of --allreduce; None: links are measured
    methods: tuple[str, ...] | None = None
    shape: Shape = "table"
    matrices: bool = False
    fail_on: "Literal['info', 'warning', 'error'] | None" = None


def wish_of(
    *,
    gpus: str | None,
    quick: bool,
    full: bool,
    numa: str | None,
    sources: list[str] | None,
    save: bool,
    baseline: bool,
    allreduce: bool,
    model: str | None,
    all_reduce: str | None,
    matrices: bool,
    output: str | None,
    json: bool,
    fail_on: str | None,
) -> Wish:
    """Check the options as they were typed. Raises UsageError."""
    if quick and full:
        raise UsageError("--quick and --full contradict one another", "leave one of them out")
    measuring = {"--gpus": gpus, "--full": full, "--quick": quick, "--numa": numa, "--allreduce": allreduce}
    if sources:
        for option, given in measuring.items():
            if given:
                raise UsageError(
                    f"{option} says how to measure, and --from only reads", "leave one of the two out"
                )
    chosen = _reduction(allreduce, model, all_reduce, full=full, numa=numa)
    if allreduce and (save or baseline):
        raise UsageError(
            "--allreduce is not filed: --save and --baseline are for the links", "leave them out"
        )
    shape = shape_of(output, FORMATS, json=json)
    if matrices and (baseline or allreduce or shape != "table"):
        raise UsageError(
            "--matrices is for the table of the links; Markdown has the matrices, and JSON every number",
            "leave it out",
        )
    return Wish(
        gpus=parse_gpu_list(gpus),
        level="full" if full else "quick",
        numa=_node(numa),
        sources=tuple(sources or ()),
        save=save,
        baseline=baseline,
        model=chosen,
        methods=None if all_reduce is None else (all_reduce,),
        shape=shape,
        matrices=matrices,
        fail_on=None if fail_on is None else require_choice("--fail-on", fail_on, FAIL_ON),
    )


def _reduction(
    allreduce: bool, model: str | None, method: str | None, *, full: bool, numa: str | None
) -> str | None:
    if not allreduce:
        for option, given in (("--model", model), ("--all-reduce", method)):
            if given is not None:
                raise UsageError(f"{option} belongs to --allreduce", "add --allreduce, or leave it out")
        return None
    if model is None:
        raise UsageError(
            "--allreduce needs a model whose gradients are added up", "add --model alexnet, for example"
        )
    for option, wrong in (("--full", full), ("--numa", numa is not None)):
        if wrong:
            raise UsageError(f"{option} is for the links, not for --allreduce", "leave one of the two out")
    from gputopo.workload import workloads as workload

    return workload.require(model).name


def _node(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 4:
        raise UsageError(f"--numa cannot be {shown(text)}", "give the number of a memory node: 0, 1, ...")
    return int(text)
