"""Options of commands that exclude or need one another, and options that moved."""

from collections.abc import Callable, Mapping
from typing import Any

from gputopo.values.errors import UsageError
from gputopo.values.option import Refusal, refuse

Texts = Mapping[str, str]
"""The typed values of options by name, in lower case."""

_HOSTS = (
    "hosts",
    "hostfile",
    "num_hosts",
    "node_rank",
    "remote_python",
    "join_timeout",
    "allow_public_address",
    "insecure",
)
# Options that also a program of the user has, in addition to the options of its plan and of hosts.
_OF_A_PROGRAM = (
    *("program", "model", "from", "require_gpu", "cpu", "format", "dry_run", "no_affinity"),
    *("sbatch_option", "output", "prometheus", "fail_on", "on_anomaly", "stall_timeout"),
)
_REMOVE = "remove {option}, or add --num-hosts 1"


class AnyOf:
    """A condition: one of the options is given. Returns the given ones, as flags.

    `format=json`: given with this value. `program!=gputopo`: given with another value.
    """

    def __init__(self, *names: str) -> None:
        self.names = names

    def __call__(self, typed: Texts) -> object:
        """Return the options that are given, as flags."""
        return self.given(typed)

    def given(self, typed: Texts) -> list[str]:
        """Return the options that are given, as flags."""
        return [flag for name in self.names if (flag := _flag_of(name, typed)) is not None]


class NoneOf(AnyOf):
    """A condition: none of the options is given."""

    def __call__(self, typed: Texts) -> object:
        """Return whether none is given."""
        return not self.given(typed)


def _flag_of(key: str, typed: Texts) -> str | None:
    """Return an option as typed, with its value if the key has one; None if it does not match the key."""
    name, has_value, value = key.partition("=")
    text = typed.get(name.rstrip("!"))
    if text is None or (has_value and (text == value) == name.endswith("!")):
        return None
    flag = f"--{name.rstrip('!').replace('_', '-')}"
    return f"{flag} {text}" if has_value else flag


def _of_training(typed: Texts) -> list[str]:
    """Return the options that only the built-in training has, as flags."""
    from gputopo.values.run.placement import PlanOptions  # `inspect` needs no plan

    others = {*PlanOptions.__struct_fields__, *_HOSTS, *_OF_A_PROGRAM} - {"all_reduce"}
    return AnyOf(*(name for name in typed if name not in others)).given(typed)


def _chosen_number(typed: Texts) -> list[str]:
    return ["--num-gpus auto"] if typed.get("num_gpus", "").startswith("auto") else []


def _repeats(typed: Texts) -> list[str]:
    return ["--repeats"] if int(typed.get("repeats", 1)) > 1 else []


def _restarts(typed: Texts) -> list[str]:
    return ["--restart"] if int(typed.get("restart", 0)) > 0 else []


def _number_of_copies(typed: Texts) -> list[str]:
    effort = typed.get("effort", "")
    return [f"--effort {effort}"] if effort.isdecimal() else []


def _speeds(typed: Texts) -> list[str]:
    several = "," in typed.get("single_gpu_images_per_sec", "")
    return ["--single-gpu-images-per-sec with several numbers"] if several else []


def _any(*conditions: Callable[[Texts], list[str]]) -> Callable[[Texts], list[str]]:
    return lambda typed: [flag for condition in conditions for flag in condition(typed)]


_PLAN_OF_ONE_HOST = _any(
    AnyOf("what_if", "autotune", "explain", "candidates=all").given,
    AnyOf("format=env", "format=sbatch", "format=docker").given,
    _speeds,
)
_RUN_OF_ONE_HOST = AnyOf("from", "format=env", "format=sbatch", "format=docker").given


def _on_one_host(condition: Callable[[Texts], list[str]]) -> tuple[Refusal[Texts], ...]:
    """Return the refusals of a run on several hosts. `condition`: on further options for one host."""
    what = "{option} is for one host, but this run has several"
    return (
        Refusal((_any(condition, AnyOf("autotune").given, _repeats),), what, _REMOVE),
        Refusal(
            (_restarts,),
            what,
            f"{_REMOVE}; after a failure start the job again with --resume auto",
        ),
        Refusal((_speeds,), what, _REMOVE),
    )


# By command, or by what a command turns out to do.
REFUSALS: Mapping[str, tuple[Refusal[Texts], ...]] = {
    "inspect": (
        Refusal(
            (AnyOf("from"), AnyOf(*_HOSTS)),
            "--from and {other} cannot be combined",
            "use only one of them",
        ),
        Refusal(
            (AnyOf("fleet", *_HOSTS), AnyOf("watch", "diff", "identities")),
            "{option} and {other} cannot be combined",
            "use only one of them; --fleet only compares hosts",
        ),
        Refusal(
            (AnyOf("watch"), AnyOf("from", "record", "diff", "identities")),
            "{option} and {other} cannot be combined",
            "use only one of them; --watch samples this machine",
        ),
        Refusal(
            (AnyOf("fleet", *_HOSTS, "diff"), AnyOf("format=prometheus")),
            "{option} cannot print prometheus",
            "give --format table or json or markdown",
        ),
        Refusal(
            (AnyOf("watch"), AnyOf("format=prometheus", "format=markdown")),
            "--watch cannot print {other}",
            "give --format table, json or csv",
        ),
        Refusal(
            (AnyOf("all", "topology", "gpu"), AnyOf("fleet", "diff", "format=json", "format=prometheus")),
            "{option} is for the report of one machine, not with {other}",
            "use only one of them; --json has everything",
        ),
        Refusal(
            (AnyOf("all", "topology"), AnyOf("watch")),
            "{option} and {other} cannot be combined",
            "use only one of them",
        ),
        Refusal((AnyOf("format=csv"), NoneOf("watch")), "{option} is for --watch", "add --watch, or --json"),
        Refusal(
            (AnyOf("all"), AnyOf("topology", "gpu")),
            "{option} and {other} cannot be combined",
            "use only one of them",
        ),
        Refusal(
            (AnyOf("topology"), AnyOf("gpu")),
            "{option} and {other} cannot be combined",
            "use only one of them",
        ),
        Refusal(
            (AnyOf("interval", "duration"), NoneOf("watch")),
            "--interval and --duration belong to --watch",
            "add --watch",
        ),
    ),
    "plan": (
        Refusal(
            (AnyOf("from"), AnyOf(*_HOSTS)),
            "--from and {other} cannot be combined",
            "use only one of them",
        ),
        Refusal(
            (AnyOf("autotune"), AnyOf("from")),
            "{option} cannot be combined with {other}: runs here cannot measure that machine",
            "remove --autotune, or run it on that machine",
        ),
        Refusal(
            (AnyOf("autotune"), AnyOf("what_if")),
            "{option} cannot be combined with {other}: a changed machine cannot be measured",
            "use only one of them",
        ),
        Refusal(
            (AnyOf("autotune"), AnyOf("candidates=all")),
            "--autotune cannot be combined with {other}, which lists predictions",
            "use only one of them, or give a number",
        ),
        Refusal(
            (AnyOf("autotune"), AnyOf("program!=gputopo")),
            "{option} cannot be combined with {other}: it measures gputopo's built-in training",
            "use only one of them",
        ),
    ),
    "bandwidth": (
        Refusal(
            (AnyOf("network", *_HOSTS), AnyOf("gpus", "soak", "numa", "size", "from", "baseline")),
            "{other} is for one host, but this measures between hosts",
            "remove it; without --network and host options, this host is measured",
        ),
        Refusal(
            (AnyOf("network", *_HOSTS), _number_of_copies),
            "{other} is for one host, but this measures between hosts",
            "give --effort quick or --effort full",
        ),
        Refusal(
            (AnyOf("from"), AnyOf("gpus", "effort", "numa", "size", "soak")),
            "{other} applies to measurements, but --from only reads a file",
            "use only one of them",
        ),
        Refusal(
            (AnyOf("network_tool"), NoneOf("network", *_HOSTS)),
            "--network-tool is for measuring between hosts",
            "add --network, or remove it",
        ),
        Refusal(
            (AnyOf("soak"), AnyOf("effort", "size", "save", "baseline")),
            "--soak cannot be combined with {other}",
            "use only one of them",
        ),
        Refusal(
            (AnyOf("all"), AnyOf("baseline", "format=json", "format=markdown")),
            "--all is for the tables; Markdown and JSON have every number",
            "remove it",
        ),
    ),
    "run": (
        Refusal(
            (AnyOf("autotune"), AnyOf("dry_run")),
            "{option} cannot be combined with {other}: it starts runs to measure them",
            "use only one of them",
        ),
        Refusal(
            (AnyOf("autotune"), AnyOf("from")),
            "{option} cannot be combined with {other}: runs on this CPU cannot measure that machine",
            "remove --autotune, or run it on that machine",
        ),
        Refusal(
            (AnyOf("autotune"), AnyOf("drill")),
            "{option} cannot be combined with {other}: it compares placements without faults",
            "use only one of them",
        ),
        Refusal(
            (AnyOf("autotune"), AnyOf("task!=train", "strategy")),
            "{option} cannot be combined with {other}: it compares placements of gputopo's built-in training",
            "use only one of them",
        ),
        Refusal(
            (AnyOf("format=env", "format=sbatch", "format=docker", "format=hostfile"), NoneOf("dry_run")),
            "{option} needs --dry-run: it only prints how to start the run",
            "add --dry-run",
        ),
        Refusal(
            (AnyOf("format=docker"), AnyOf("hosts", "hostfile", "num_hosts")),
            "{option} is for one host",
            "use --format sbatch or hostfile, or add --num-hosts 1",
        ),
        Refusal(
            (AnyOf("node_rank", "remote_python"), AnyOf("format=hostfile")),
            "{option} cannot be combined with {other}, which starts the run in another way",
            "remove {option}",
        ),
        Refusal(
            (
                AnyOf("node_rank", "remote_python"),
                AnyOf("format=sbatch"),
                AnyOf("hosts", "hostfile", "num_hosts"),
            ),
            "{option} cannot be combined with {other}, which starts the run in another way",
            "remove {option}",
        ),
        Refusal(
            (AnyOf("sbatch_option"), NoneOf("format=sbatch")),
            "{option} is for a batch script",
            "add --dry-run --format sbatch",
        ),
    ),
    "run -- PROGRAM": (
        Refusal(
            (_of_training,),
            "{option} works with the built-in training only, not with your own program",
            "remove it, or put it after the program: everything after -- belongs to the program",
        ),
        Refusal(
            (AnyOf("format=json"), NoneOf("dry_run")),
            "--json cannot be combined with a program, which uses stdout itself",
            "remove --json: the result is result.json in the run folder (--output DIR); --dry-run prints "
            "the plan as JSON",
        ),
        Refusal(
            (AnyOf("from"), NoneOf("dry_run")),
            "--from plans for another machine, but the program would run on this one",
            "remove --from, or add --dry-run to see the plan only",
        ),
    ),
    "plan of several hosts": (
        Refusal((_PLAN_OF_ONE_HOST,), "{option} is for one host, but this plan has several", _REMOVE),
    ),
    "plan of several files": (
        Refusal(
            (_PLAN_OF_ONE_HOST,),
            "{option} is for one host, but this plan has several",
            "remove {option}, or plan for one file without --fleet",
        ),
    ),
    "run on several hosts": _on_one_host(_RUN_OF_ONE_HOST),
    "run on several hosts -- PROGRAM": _on_one_host(
        _any(_RUN_OF_ONE_HOST, AnyOf("dry_run").given, _chosen_number)
    ),
    # The core predicts after the hosts have met.
    "run --format of several hosts": _on_one_host(_chosen_number),
    "sweep": (
        Refusal(
            (AnyOf("retry_failed"), NoneOf("resume")),
            "--retry-failed only works with --resume",
            "add --resume DIR",
        ),
        Refusal(
            (AnyOf("resume"), AnyOf("compare_pairs", "data_dir", "order", "seed", "cpu", "output")),
            "{other} cannot be combined with --resume, which keeps the settings of the sweep",
            "remove it, or start a new sweep without --resume",
        ),
    ),
    "report": (
        Refusal(
            (AnyOf("history"), AnyOf("runs", "import", "published", "baseline")),
            "--history cannot be combined with a list of runs: it shows the runs of this machine",
            "remove them, or remove --history",
        ),
        Refusal(
            (AnyOf("model", "since"), NoneOf("history")),
            "--model and --since choose runs of --history",
            "add --history, or give run folders",
        ),
        Refusal(
            (AnyOf("published"), AnyOf("runs", "import", "baseline")),
            "--published cannot be combined with runs",
            "remove --published: published figures of a GPU are shown next to its runs anyway",
        ),
    ),
    "make-data": (
        Refusal(
            (AnyOf("files"), AnyOf("data_name=cifar10")),
            "{option} cannot be combined with {other}: it always has five training files",
            "remove --files, or use --data-name imagenet",
        ),
    ),
}


# What to do instead of options that a command does not have (any more).
MOVED: Mapping[str, Mapping[str, str]] = {
    "plan": {"gain": "give the share with the number: --num-gpus auto:0.5"},
    "run": {
        "gain": "give the share with the number: --num-gpus auto:0.5",
        "program": "it is for plan; run uses gputopo's built-in training, or your program after --",
        "time-budget": "it is for sweep; --num-batches N limits the steps of a run",
        "min-hosts": "a run on several hosts ends when one host fails: start it again with --resume auto",
        "resume-or-start": "write --resume auto",
    },
    "bandwidth": {
        "allreduce": "time reductions with gputopo bench-reduction --model NAME [--all-reduce METHOD]",
        "all-reduce": "time reductions with gputopo bench-reduction --model NAME [--all-reduce METHOD]",
        "model": "time reductions with gputopo bench-reduction --model NAME [--all-reduce METHOD]",
        "loops": "give the number of repeats as --effort N",
        "matrices": "write --all",
    },
    "screen": {"from": "screen has to run on the machine itself"},
    "sweep": {"from": "sweep has to run on the machine itself"},
}


def refuse_typed(command: str, texts: Mapping[str, Any]) -> None:
    """Raise UsageError for typed options that cannot be combined. `command`: a key of `REFUSALS`."""
    lower = ((name.rstrip("_"), str(text).lower()) for name, text in texts.items())
    # --num-hosts 1: only this host
    typed: Texts = {name: text for name, text in lower if (name, text) != ("num_hosts", "1")}
    refuse(REFUSALS.get(command, ()), typed)


def refuse_moved(command: str, flag: str) -> None:
    """Raise UsageError for an option that a command does not have, but another way to do the same."""
    if use := MOVED.get(command, {}).get(flag.removeprefix("--")):
        raise UsageError(f"there is no option '{flag}'", use)
