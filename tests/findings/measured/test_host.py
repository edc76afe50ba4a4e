"""Host memory by one number and by its NUMA node, and shared uplinks by the direction that they slow down."""

import pytest
from msgspec.structs import replace

from gputopo.findings import find_bandwidth
from gputopo.values.bandwidth import CopyRate, CopyRateKind, UplinkGroup
from gputopo.values.finding import Finding
from gputopo.values.machine import Machine
from tests.findings.measured.machines import added, copies, measured, memory, sample, with_copies


def found(machine: Machine, id: str) -> list[Finding]:
    return [one for one in find_bandwidth(machine) if one.id == id]


def with_memory(*repeats: float) -> Machine:
    machine = memory(40.0)(measured())
    return with_copies(
        machine,
        [
            replace(one, repeats_gb_per_s=repeats, median_gb_per_s=sorted(repeats)[1], spread_percent=None)
            if one.kind == "host_memory"
            else one
            for one in copies(machine)
        ],
    )


def test_unsteady_host_memory_is_reported() -> None:
    assert found(with_memory(7.0, 7.81, 11.0), "bandwidth.unsteady") != []


def sharing(*slowed: CopyRateKind, gpus: tuple[int, ...] = (0, 1), count: int = 4) -> Finding:
    group = UplinkGroup(
        gpus=gpus, from_kind=slowed[0], alone_gb_per_s=441.0, together_gb_per_s=359.0, slowed=slowed[:2]
    )
    (one,) = found(added(uplink_groups=(group,))(measured(count)), "pcie.shared_uplink")
    return one


@pytest.mark.parametrize("gpus", [(0, 1), (0, 1, 2, 3)])
def test_the_direction_that_shrinks_is_named_and_the_other_is_not_advised_against(
    gpus: tuple[int, ...],
) -> None:
    up, down, both = (sharing(*kinds, gpus=gpus) for kinds in (("d2h",), ("h2d",), ("h2d", "d2h")))
    assert "in the direction to the host (359.0 GB/s at once, 441.0 one at a time)" in up.says
    assert "input from the host is not limited" in (up.remedy or "")
    assert "in the direction from the host (359.0 GB/s at once" in down.says
    assert "opies to the host are not limited" in (down.remedy or "")
    assert "from the host 359.0 GB/s at once, 441.0 one at a time" in both.says
    assert "not limited" not in (both.remedy or "")
    assert "the host" in (both.remedy or "")


def test_copies_at_once_show_the_direction_themselves() -> None:
    def eight(kind: CopyRateKind, together: float) -> list[CopyRate]:
        samples = []
        for gpu in range(8):
            ends = ("host", f"gpu:{gpu}") if kind == "h2d" else (f"gpu:{gpu}", "host")
            samples.append(sample(kind, *ends, 55.2, pinned=True))
            samples.append(sample(kind, *ends, together, pinned=True, group=f"all {kind}"))
        return samples

    machine = with_copies(measured(8), [*eight("h2d", 55.1), *eight("d2h", 44.9)])
    (one,) = found(machine, "pcie.shared_uplink")
    assert [group["slowed"] for group in one.evidence["groups"]] == [["d2h"]]
    assert "input from the host is not limited" in (one.remedy or "")
