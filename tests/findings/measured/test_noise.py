"""Measurements of a noisy host accuse nothing, and shared links ask less of it than their sum."""

from msgspec.structs import replace

from gputopo.findings import find_bandwidth
from gputopo.values.bandwidth import Sample
from gputopo.values.machine import Machine
from tests.findings.measured.machines import added, copies, measured, memory, sample, with_copies


def ids(machine: Machine) -> set[str]:
    return {finding.id for finding in find_bandwidth(machine)}


def noisy(machine: Machine, kind: str, low: float, high: float) -> Machine:
    def wide(one: Sample) -> Sample:
        return replace(one, repeats_gb_per_s=(low, one.median_gb_per_s or 0.0, high))

    return with_copies(machine, (wide(one) if one.kind == kind else one for one in copies(machine)))


def test_a_far_node_that_was_once_as_fast_as_the_near_one_is_not_called_slow() -> None:
    machine = memory(60.0, 30.0)(measured())
    assert "numa.far_slow" in ids(machine)
    assert "numa.far_slow" not in ids(noisy(machine, "host_memory", 25.0, 62.0))


def test_gpus_that_share_an_uplink_ask_no_more_of_the_host_than_they_got_at_once() -> None:
    machine = memory(60.0)(measured(4))
    assert "host.memory_slow" in ids(machine)  # four links of 12 GB/s, both directions
    at_once = [
        sample(kind, *ends, 6.0, pinned=True, group=f"{kind} gpus:0,1,2,3")  # type: ignore[arg-type]
        for gpu in range(4)
        for kind, ends in (("h2d", ("host", f"gpu:{gpu}")), ("d2h", (f"gpu:{gpu}", "host")))
    ]
    assert "host.memory_slow" not in ids(added(*at_once)(machine))
