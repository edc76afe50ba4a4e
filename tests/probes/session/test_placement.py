"""Host memory that does not lie where a session asks for it."""

import msgspec
import pytest

from gputopo.findings import find_bandwidth
from gputopo.values.bandwidth import Bandwidth, CopyRate
from tests.kit.cuda.build import why_not
from tests.probes.session.test_on_double import machine, session, spec

pytestmark = [
    pytest.mark.sessions,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


def _host(found: Bandwidth, gpu: int, near: int) -> CopyRate:
    (one,) = (
        s
        for s in found.copies
        if (s.kind, s.destination, s.pinned, s.group) == ("h2d", f"gpu:{gpu}", True, None)
        and s.method == "copy_engine"
        and s.numa_wanted in (None, near)
    )
    return one


def test_memory_on_another_node_than_the_gpus_own_is_found_and_named() -> None:
    words = ("far=0.4", "memoryon=0")
    found = session("8two", "h2d", (0, 4), *words).bandwidth
    near, far = _host(found, 0, 0), _host(found, 4, 1)
    assert (near.numa_node, near.numa_wanted) == (0, None)
    assert (far.numa_node, far.numa_wanted) == (0, 1)
    assert far.median_gb_per_s == pytest.approx(spec("8two", *words).rate("h2d", 4, 0) / 1e9, rel=0.03)
    faults = find_bandwidth(msgspec.structs.replace(machine("8two"), bandwidth=found))
    (one,) = (fault for fault in faults if fault.id == "numa.memory_elsewhere")
    assert (one.severity, str(one.subject)) == ("warning", "gpu:4")
    assert any("set_mempolicy" in note for note in found.notes)


def test_cpus_of_another_node_do_not_place_the_memory_there() -> None:
    words = ("far=0.4", "cpuset=0")
    found = session("8two", "h2d", (4,), *words).bandwidth
    far = _host(found, 4, 1)
    assert (far.numa_node, far.numa_wanted) == (1, None)
    assert far.median_gb_per_s == pytest.approx(spec("8two", *words).rate("h2d", 4, 1) / 1e9, rel=0.03)
