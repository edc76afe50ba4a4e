"""Options of a command that exclude or need one another, as they are typed: one table for all commands.

What depends on values, on the machine or on a starter is refused where that is known; the options of a
training by `gputopo.launch.spec.rules`.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gputopo.values.errors import UsageError
from gputopo.values.option import Text


class Exclusion(NamedTuple):
    """A row: one of the `options` with one of the `others`.

    Names are those of `Declared.name`, with a value where that alone excludes: `format=json`, `task!=train`.
    The texts are formatted with `option` and `other`, as they are typed.
    """

    commands: str
    options: str
    others: str
    what: str
    use: str
    needs: bool = False  # without all of these


_HOSTS = "hosts hostfile num_hosts node_rank remote_python join_timeout allow_public_address"
_ONE = "leave one of them out"
_APART = "{option} and {other} do not go together"
_NEVER = "{option} cannot be combined with {other}: "
REFUSALS = (
    Exclusion("inspect plan", "from", _HOSTS, "--from and {other} are mutually exclusive", _ONE),
    Exclusion(
        "inspect",
        f"fleet {_HOSTS}",
        "watch diff identities",
        _APART,
        "leave out one of them: --fleet only compares hosts",
    ),
    Exclusion(
        "inspect",
        "watch",
        "from record diff identities",
        _APART,
        "leave out one of them: --watch samples this machine",
    ),
    Exclusion(
        "inspect",
        f"fleet {_HOSTS} diff",
        "format=prometheus",
        "{option} cannot print prometheus",
        "give --format table or json or markdown",
    ),
    Exclusion(
        "inspect",
        "watch",
        "format=prometheus format=markdown",
        "--watch cannot print {other}",
        "give --format table, json or csv",
    ),
    Exclusion(
        "inspect",
        "all topology gpu",
        "fleet diff format=json format=prometheus",
        "{option} is for the report of one machine, not with {other}",
        "leave one of them out; --json has everything",
    ),
    Exclusion("inspect", "all topology", "watch", _APART, _ONE),
    Exclusion(
        "inspect", "format=csv", "watch", "{option} is for --watch", "add --watch, or --json", needs=True
    ),
    Exclusion("inspect", "all", "topology gpu", _APART, _ONE),
    Exclusion("inspect", "topology", "gpu", _APART, _ONE),
    Exclusion(
        "inspect",
        "interval duration",
        "watch",
        "--interval and --duration belong to --watch",
        "add --watch",
        needs=True,
    ),
    Exclusion(
        "bandwidth",
        f"network {_HOSTS}",
        "gpus soak numa size from baseline",
        "{other} is for one host, and this measures between hosts",
        "leave it out; without --network and options of hosts this host is measured",
    ),
    Exclusion(
        "bandwidth",
        "from",
        "gpus effort numa size soak",
        "{other} is for measuring, and --from only reads",
        "leave one of the two out",
    ),
    Exclusion(
        "bandwidth",
        "network_tool",
        f"network {_HOSTS}",
        "--network-tool is for measuring between hosts",
        "add --network, or leave it out",
        needs=True,
    ),
    Exclusion(
        "bandwidth",
        "soak",
        "effort size save baseline",
        "--soak measures rates under load, which {other} is not for",
        "leave one out",
    ),
    Exclusion(
        "bandwidth",
        "all",
        "baseline format=json format=markdown",
        "--all is for the tables; Markdown and JSON have every number",
        "leave it out",
    ),
    Exclusion(
        "plan",
        "autotune",
        "from",
        _NEVER + "runs here do not measure that machine",
        "leave --autotune out, or run it on that machine",
    ),
    Exclusion("plan", "autotune", "what_if", _NEVER + "a changed machine cannot be measured", _ONE),
    Exclusion(
        "plan",
        "autotune",
        "candidates=all",
        "--autotune cannot be combined with {other}, which lists predictions",
        "leave one of them out, or give a number",
    ),
    Exclusion("plan", "autotune", "program!=gputopo", _NEVER + "it measures training by gputopo", _ONE),
    Exclusion("run", "autotune", "dry_run", _NEVER + "it starts runs to measure them", _ONE),
    Exclusion(
        "run",
        "autotune",
        "from",
        _NEVER + "runs on this CPU do not measure that machine",
        "leave --autotune out, or run it on that machine",
    ),
    Exclusion("run", "autotune", "drill", _NEVER + "it compares placements without faults", _ONE),
    Exclusion(
        "run",
        "autotune",
        "task!=train strategy",
        _NEVER + "it compares placements of the core's own training",
        _ONE,
    ),
    Exclusion(
        "run",
        "sbatch_option",
        "format=sbatch",
        "{option} is for a batch script",
        "add --dry-run --format sbatch",
        needs=True,
    ),
    Exclusion(
        "sweep",
        "retry_failed",
        "resume",
        "--retry-failed needs a sweep to go on with",
        "add --resume DIR",
        needs=True,
    ),
    Exclusion(
        "sweep",
        "resume",
        "compare_pairs data_dir order seed cpu output",
        "{other} cannot be combined with --resume: it goes on as the sweep began",
        "leave it out, or begin a new sweep without --resume",
    ),
    Exclusion(
        "report",
        "history",
        "runs import published baseline",
        "--history cannot be combined with runs: it shows those of this machine",
        "leave them out, or leave --history out",
    ),
    Exclusion(
        "report",
        "model since",
        "history",
        "--model and --since choose runs of --history",
        "add --history, or name run folders",
        needs=True,
    ),
    Exclusion(
        "report",
        "published",
        "runs import baseline",
        "--published cannot be combined with runs",
        "the published figures of a GPU stand beside its runs without it: leave it out",
    ),
    Exclusion(
        "make-data",
        "files",
        "data_name=cifar10",
        _NEVER + "that has five training files",
        "leave --files out, or use --data-name imagenet",
    ),
)


def refuse(command: str, texts: Mapping[str, Text]) -> None:
    """Raise UsageError for the first row that applies to what was typed for a command."""
    typed = {name.rstrip("_"): str(text).lower() for name, text in texts.items()}
    if typed.get("num_hosts") == "1":  # this host alone
        del typed["num_hosts"]
    for row in REFUSALS:
        if command in row.commands.split() and (option := _typed(row.options.split(), typed)):
            other = _typed(row.others.split(), typed)
            if row.needs == (other is None):
                raise UsageError(row.what.format(option=option, other=other), row.use)


def _typed(keys: Iterable[str], typed: Mapping[str, str]) -> str | None:
    """Return the first of the options as it was typed; None where none was."""
    for key in keys:
        name, has_value, value = key.partition("=")
        negated, name = name.endswith("!"), name.rstrip("!")
        if name not in typed or (has_value and (typed[name] == value) == negated):
            continue
        flag = f"--{name.replace('_', '-')}"
        return f"{flag} {typed[name]}" if has_value else flag
    return None
