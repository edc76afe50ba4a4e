"""Outputs of several runs of one program in one text, as scripts, parallel shells and people write them."""

from collections.abc import Callable, Sequence

import msgspec

from gputopo.values.bandwidth import Sample
from gputopo.values.machine import Machine


def _headed(form: str) -> Callable[[Sequence[str]], str]:
    def text(outputs: Sequence[str]) -> str:
        return "\n".join(f"{form.format(f'node{number}')}\n{one}" for number, one in enumerate(outputs, 1))

    return text


FORMS: dict[str, Callable[[Sequence[str]], str]] = {
    "rules": _headed("===== {} ====="),
    "markdown": _headed("## {}"),
    "tail": _headed("==> {} <=="),
    "nothing": "\n".join,
}


def of_run(machine: Machine, name: str) -> tuple[Sample, ...]:
    """Return the samples of a machine as samples of a run."""
    samples = machine.bandwidth.samples if machine.bandwidth else ()
    return tuple(msgspec.structs.replace(sample, run=name) for sample in samples)
