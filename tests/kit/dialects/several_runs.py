"""Outputs of several runs of one program in one text, as scripts, parallel shells and people write them."""

from collections.abc import Callable, Sequence

import msgspec

from gputopo.values.bandwidth import Sample
from gputopo.values.machine import Machine

Names = Sequence[str]

# Names of runs: hosts, iterations of a loop, before and after a change.
NAMES = (("node1", "node2", "node3"), ("gpu-a07", "gpu-a08", "gpu-b01"), ("run 1", "run 2", "run 3"))
CHANGES = ("before", "after", "after reboot")


def _headed(form: str) -> Callable[[Names, Names], str]:
    def text(names: Names, outputs: Names) -> str:
        return "\n".join(f"{form.format(name)}\n{one}" for name, one in zip(names, outputs, strict=True))

    return text


FORMS: dict[str, Callable[[Names, Names], str]] = {
    "rules": _headed("===== {} ====="),
    "dashes": _headed("--- {} ---"),
    "equals": _headed("== {} =="),
    "markdown": _headed("## {}"),
    "comment": _headed("# {}"),
    "bold rule": _headed("********** {} **********"),
    "tail": _headed("==> {} <=="),
}
FORMS_OF_HOSTS = FORMS | {
    "brackets": _headed("[{}]"),
    "colon": _headed("{}:"),
}


def of_run(machine: Machine, name: str) -> tuple[Sample, ...]:
    """Return the samples of a machine as samples of a run."""
    samples = machine.bandwidth.samples if machine.bandwidth else ()
    return tuple(msgspec.structs.replace(sample, run=name) for sample in samples)
