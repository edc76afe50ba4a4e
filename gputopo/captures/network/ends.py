"""Both ends of a network benchmark, which its output does not name, and its Machine without a GPU.

Addresses and host names are dropped, since they identify somebody's machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gputopo.values.bandwidth import NETWORK_ERROR, Bandwidth, Failure, NotMeasured, Sample
from gputopo.values.machine import Machine

CLIENT, SERVER = "host:client", "host:server"


@dataclass(slots=True)
class Report:
    """What one run of a network benchmark reports."""

    samples: list[Sample] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    not_measured: list[NotMeasured] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    complete: bool = True

    def fail(self, program: str, says: str) -> None:
        """Add an error that the program reports."""
        says = f"{program}: {says.strip()[:200]}"
        one = Failure(kind="network", source=CLIENT, destination=SERVER, reason=NETWORK_ERROR, says=says)
        if one not in self.failures:
            self.failures.append(one)


def ends(*, to_client: bool) -> tuple[str, str]:
    """Return source and destination of a transfer."""
    return (SERVER, CLIENT) if to_client else (CLIENT, SERVER)


def sent_alone(program: str, gb_per_s: float, transport: str | None, report: Report) -> float | None:
    """Return the rate of a test whose receiver reports none, GB/s, and add to its report that it does.

    TCP resends until all has arrived, so that its rate is the sender's. Of UDP nothing is known: None.
    """
    if gb_per_s > 0 and transport != "UDP":
        report.notes[f"{program}: the receiver reports no bytes; the rate is the sender's"] = None
        return gb_per_s
    why = "the receiver reports no bytes" if gb_per_s > 0 else "its rate is 0"
    report.not_measured.append(NotMeasured(what=f"{program} {transport or ''}".rstrip(), reason=why))
    return None


def machine(source: str, report: Report, samples: Sequence[Sample] | None = None) -> Machine:
    """Return the machine, which has no GPU, of a report."""
    return Machine(
        source=source,
        bandwidth=Bandwidth(
            source=source,
            samples=tuple(report.samples if samples is None else samples),
            failures=tuple(report.failures),
            not_measured=tuple(report.not_measured),
            notes=tuple(report.notes),
            complete=report.complete,
        ),
    )
