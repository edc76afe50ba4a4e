"""Write the pages that follow from the code: `python -m tests.pages.generate`. A test compares them."""

import csv
import inspect
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from itertools import takewhile
from pathlib import Path

from gputopo import pages
from gputopo.captures import read_bundled, readable
from gputopo.cli import COMMANDS, options_of_command
from gputopo.findings import WATCHES, Rule, find, rules
from gputopo.prediction import ProgramConstants, program_names, require_program
from gputopo.report.check_commands import check_command
from gputopo.report.pictures import topology_picture
from gputopo.runs.verdict import CAUSES, PARTS
from gputopo.values.index_ranges import natural
from gputopo.values.option import Declared
from gputopo.values.run import all_reduce
from gputopo.workload import require_workload, workload_names

_PAGES = Path(pages.__file__).parent
DRAWN = "7gforce"  # the bundled machine in the README's picture


def findings() -> str:
    """Return the page of the findings: a table, and a section for each."""
    listed = rules()
    rows = [(f"`{rule.id}`", ", ".join(rule.severities), rule.title) for rule in listed]
    return f"""# findings: what can be wrong, with remedies and thresholds

The id of a finding keeps its meaning from version to version. If a value is missing, the check is not made
and is not counted. In the commands below, GPU stands for the number of the GPU; `gputopo inspect` prints it.

{_table(("finding", "severity", "meaning"), rows)}
""" + "\n".join(map(_finding, listed))


def _finding(rule: Rule) -> str:
    parts = [f"## `{rule.id}`\n", f"{', '.join(rule.severities)}: {rule.title}.\n"]
    if rule.remedy:
        parts.append(f"Remedy: {rule.remedy}\n")
    parts.append(f"Check with: `{check_command(rule.id)}`\n")
    if rule.thresholds:
        numbers = [
            (one.name, f"{one.value:g} {one.unit}".strip().replace(" %", "%"), one.origin)
            for one in rule.thresholds
        ]
        parts.append(_table(("threshold", "value", "origin"), numbers))
    if rule.cases:
        cases = [(case.name, case.severity, case.says, case.remedy) for case in rule.cases]
        if all(re.match("S?Xid ", name) for name, *_ in cases):
            cases.sort(key=lambda case: natural(case[0]))
        parts.append(_table(("case", "severity", "meaning", "remedy"), cases))
    return "\n".join(parts)


def options() -> str:
    """Return the page of the options of every command."""
    commands = []
    for command, place in COMMANDS.items():
        by_theme: dict[str, list[Declared]] = {"": []}
        for one in options_of_command(command):
            by_theme.setdefault(one.option.theme, []).append(one)
        header = ("option", "value", "meaning")
        themes = [
            (f"### {theme}\n\n" if theme else "") + _table(header, map(_option, listed))
            for theme, listed in by_theme.items()
            if listed
        ]
        commands.append(f"## {command}\n\n{place.summary}\n\n" + "\n".join(themes))
    short = ", ".join(f"`{flag}`: `{words}`" for flag, words in short_forms().items())
    return f"# options: options of every command\n\nShort forms: {short}.\n\n" + "\n".join(commands)


def short_forms() -> dict[str, str]:
    """Return the short forms of gputopo's own options, which stand before the flags of other programs."""
    table = resources.files("gputopo.reference.data").joinpath("other_flags.csv")
    rows = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
    own = takewhile(lambda row: row["flags"] != "--use-fp16", rows)
    return {row["flags"]: row["means"] for row in own}


def _option(one: Declared) -> tuple[str, str, str]:
    flags = ", ".join(f"`{flag}`" for flag in (one.option.flag, one.option.letter) if flag)
    return flags, f"`{one.placeholder}`" if one.placeholder else "", one.help


def models() -> str:
    """Return the page of the models."""
    known = [require_workload(name) for name in workload_names()]
    rows = [
        (
            f"`{one.name}`",
            _shape(one.input_shape),
            f"{one.parameters:,}",
            f"{one.parameter_bytes / 2**20:.1f}",
            _macs(one.multiply_accumulates),
            f"{one.feature_bytes / 2**20:.1f}",
            str(one.gpu_batch),
        )
        for one in known
    ]
    header = ("model", "input", "parameters", "MiB", "multiply-adds", "features MiB", "batch")
    sources = [f"`{one.name}` ({one.source})" for one in known if one.source != "tf_cnn_benchmarks"]
    notes = [(f"`{one.name}`", one.note) for one in known if one.note]
    return f"""# models: values of --model

`--model` takes a name from this table, `keras:NAME` for a model of keras.applications, or `module:function`
for a function that returns your own Keras model. If a model is not in the table, `plan` builds it once, in a
process without GPUs, and stores its parameters, multiply-adds and features. If your module changes, the model
is built again.

{_table(header, rows)}
- Parameters: the number of trainable parameters. As in tf_cnn_benchmarks, ImageNet models have 1001 classes
  and CIFAR-10 models 11. As in the original code, `cifar10-cnn` has 10 classes and `mlp` has one output.
- MiB: the size of the parameters as float32.
- Multiply-adds: of the forward pass of one example.
- Features: the layer outputs of one example that are stored for the backward pass.
- Batch: per GPU, the default of tf_cnn_benchmarks.

The networks are from tf_cnn_benchmarks, except: {", ".join(sources)}. `gputopo models --json` prints the
table as JSON, with the sources.

{_table(("model", "note"), notes)}"""


_BETWEEN_HOSTS = (
    (
        "`copy`",
        "added on one device per variable and copied back; the variables are shared among the devices of all "
        "hosts",
    ),
    (
        "`hierarchical`",
        "added within each host. Each host sends its sum to one host, which adds the sums and sends the "
        "total back",
    ),
    (
        "`collective`, `nccl`",
        "added within each host, then by TensorFlow's collective op between one device of each host. The "
        "devices of a host take turns: each variable uses the next one",
    ),
    ("`nccl_op`", "not supported: it works within one process"),
)


def reductions() -> str:
    """Return the page of the reductions."""
    rows = [(f"`{name}`", meaning) for name, meaning in all_reduce.MEANINGS.items()]
    table = _table(("method", "how gradients are added"), rows)
    return f"""# reductions: values of --all-reduce

A reduction is the method that adds the gradients of all devices. `--all-reduce` selects it for `replicated`.
`NAME#K` uses K parts, or K rings.

{table}
On several hosts:

{_table(("method", "how gradients are added"), _BETWEEN_HOSTS)}
[hosts](hosts.md#devices-variables-and-gradients) explains which method is used if you do not give
`--all-reduce`. In some cases the run first compares two methods for some seconds: copies between hosts, and
`nccl` (on GPUs) or `collective` (on CPU devices). It uses copies unless the other method is more than 5%
faster, and prints the times: `exchange between hosts: copies 38 ms, nccl 12 ms: nccl`.
"""


def formats() -> str:
    """Return the page of the formats, with a row for each that the code reads; its other text as it is."""
    page = (_PAGES / "formats.md").read_text(encoding="utf-8")
    above, _, below = page.partition(_INPUTS)
    rows = readable()
    return above + _table(("input", "what is read"), rows) + "\n" + below.partition("\n\n")[2]


def prediction() -> str:
    """Return the page of predictions, with the constants of the programs; its other text as it is."""
    page = (_PAGES / "prediction.md").read_text(encoding="utf-8")
    above, _, below = page.partition(_CONSTANTS)
    programs = [require_program(name) for name in program_names()]
    shown = inspect.cleandoc(ProgramConstants.__doc__ or "")
    rows = []
    for names, meaning in re.findall(
        r"^(?:- )?((?:`\w+`(?:, | and |))+):? (.+(?:\n +.+)*)", shown, re.MULTILINE
    ):
        fields = re.findall(r"\w+", names.replace(" and ", " "))
        values = (", ".join(_constant(getattr(one, field)) for field in fields) for one in programs)
        words = re.sub(r"\s+", " ", meaning).rstrip(".;")
        rows.append((", ".join(f"`{field}`" for field in fields), words, *values))
    sources = "".join(f"- `{one.name}`: {one.source}.\n" for one in programs)
    rest = below.partition("\n\n")[2].partition("\n\n")[2]
    return f"{above}{_table(_HEADER, rows)}\n{sources}\n{rest}"


def verdicts() -> str:
    """Return the page of verdicts, with the causes as they are declared; its other text as it is."""
    page = (_PAGES / "verdicts.md").read_text(encoding="utf-8")
    above, _, below = page.partition(_CAUSES)
    rows = [
        (f"`{one.id}`", one.title, ", ".join(f"`{field}`" for field in one.needs), one.explains)
        for one in CAUSES
    ]
    rows += [
        (
            f"`{one.id}`",
            f"the run became slower: more time for {one.title}",
            f"`{one.needs}` of steps",
            "all of it",
        )
        for one in PARTS
    ]
    return above + _table(_CAUSES_HEADER, rows) + "\n" + below.partition("\n\n")[2]


def program() -> str:
    """Return the page of programs, with the checks of their hardware as they are declared."""
    page = (_PAGES / "program.md").read_text(encoding="utf-8")
    above, _, below = page.partition(_CHECKS)
    rows = [(f"`{one.id}`", one.title, ", ".join(f"`{field}`" for field in one.needs)) for one in WATCHES]
    return above + _table(_CHECKS_HEADER, rows) + "\n" + below.partition("\n\n")[2]


def _constant(value: float | bool | str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:g}"


_CHECKS_HEADER = ("finding", "meaning", "fields of the samples")
_CHECKS = f"| {' | '.join(_CHECKS_HEADER)} |\n"
_CAUSES_HEADER = ("cause", "meaning", "fields of the samples", "explains at most")
_CAUSES = f"| {' | '.join(_CAUSES_HEADER)} |\n"
_INPUTS = "| input | what is read |\n"
_HEADER = ("constants", "meaning", *(f"`{name}`" for name in program_names()))
_CONSTANTS = f"| {' | '.join(_HEADER)} |\n"
GENERATED = {
    "findings": findings,
    "formats": formats,
    "models": models,
    "reductions": reductions,
    "options": options,
    "prediction": prediction,
    "program": program,
    "verdicts": verdicts,
}


def main() -> None:
    """Write all generated pages."""
    for name, page in GENERATED.items():
        (_PAGES / f"{name}.md").write_text(page(), encoding="utf-8")
    machine = read_bundled(DRAWN)
    picture = topology_picture(machine, find(machine))
    assert picture is not None
    (_PAGES / f"{DRAWN}.svg").write_text(picture.svg, encoding="utf-8")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def _shape(shape: tuple[int, int, int]) -> str:
    height, width, channels = shape
    return f"{height}x{width}" if height > 1 else f"{channels} numbers"


def _macs(count: int) -> str:
    return f"{count / 1e9:.3g} G" if count >= 1e8 else f"{count / 1e6:.3g} M"


if __name__ == "__main__":
    main()
