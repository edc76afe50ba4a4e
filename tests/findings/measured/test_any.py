"""Whatever samples there are, the verdict is made without an exception."""

from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo.copies import checked, with_expectations
from gputopo.findings import find_bandwidth
from gputopo.values.bandwidth import (
    Bandwidth,
    Collective,
    CollectiveRate,
    Conditions,
    CopyLatency,
    CopyRate,
    CopyRateKind,
    Failure,
    Invalid,
    Kind,
    Method,
    Path,
    Run,
    Sample,
    Samples,
    UplinkGroup,
)
from gputopo.values.ends import End
from gputopo.values.machine import Gpu, Hop, Link, Machine
from gputopo.values.rates import pair_speeds
from gputopo.values.schema import encode
from tests.findings.boxes import IDS, sound

ENDS = ("host", "node:0", "node:1", "gpu:0", "gpu:1", "gpu:2", "gpu:9", "somewhere")
PLACES = st.sampled_from(ENDS).map(End)
RATES = st.one_of(st.none(), st.just(0.0), st.floats(1e-3, 1e4))
SMALL = st.one_of(st.none(), st.integers(0, 20))
CONDITIONS = st.builds(
    Conditions,
    gpu=st.integers(0, 3),
    readings=st.integers(0, 3),
    pcie_gen=SMALL,
    pcie_width=SMALL,
    link_changes=st.integers(0, 3),
    throttle_mask=st.one_of(st.none(), st.integers(-1, 0xFFF)),
)
OF_ANY: dict[str, Any] = {
    "source": PLACES,
    "destination": PLACES,
    "bytes": st.sampled_from([None, 0, 4096, 1 << 25, 1 << 28]),
    "group": st.sampled_from([None, None, "a gpus:0,1", "b gpus:0,1,2", "c"]),
    "runs": st.sampled_from([(), (Run(name="1", value=2.0), Run(name=None, value=9.0))]),
    "invalid": st.sampled_from([None, None, None, *get_args(Invalid)]),
    "conditions": st.lists(CONDITIONS, max_size=2).map(tuple),
}
OF_COPIES: dict[str, Any] = {
    "pinned": st.sampled_from([None, True, False]),
    "method": st.sampled_from([None, *get_args(Method)]),
    "path": st.sampled_from([None, *get_args(Path)]),
    "numa_node": st.sampled_from([None, 0, 1]),
}
OF_RATES: dict[str, Any] = {
    "median_gb_per_s": RATES,
    "repeats_gb_per_s": st.lists(st.floats(0, 1e4), max_size=4).map(tuple),
}
COPIES = st.builds(CopyRate, kind=st.sampled_from(get_args(CopyRateKind)), **OF_ANY, **OF_COPIES, **OF_RATES)
LATENCIES = st.builds(CopyLatency, median_us=st.floats(0.1, 100), **OF_ANY, **OF_COPIES)
COLLECTIVES = st.builds(CollectiveRate, kind=st.sampled_from(get_args(Collective)), **OF_ANY, **OF_RATES)
SAMPLES: st.SearchStrategy[Sample] = COPIES | LATENCIES | COLLECTIVES
FAILURES = st.builds(
    Failure,
    kind=st.sampled_from(get_args(Kind)),
    source=PLACES,
    destination=PLACES,
    reason=st.sampled_from(["WRONG_DATA", "TIMED_OUT", "CUDA_ERROR_UNKNOWN", ""]),
    says=st.just("it did"),
)
SESSIONS = st.builds(
    Bandwidth,
    source=st.sampled_from(["live", "bandwidthTest", "nvbandwidth + p2pBandwidthLatencyTest"]),
    samples=st.lists(SAMPLES, max_size=25).map(Samples),
    failures=st.lists(FAILURES, max_size=3).map(tuple),
    uplink_groups=st.sampled_from([(), (UplinkGroup(gpus=(0, 1), from_kind="h2d"),)]),
)
BARE = Machine(
    source="a test",
    gpus=tuple(Gpu(index=index, name="GeForce GTX 1070" if index else None) for index in range(3)),
    links=(Link(a=0, b=1, hop=Hop.PHB), Link(a=0, b=2, nvlinks=2)),
)


@given(SESSIONS, st.sampled_from([BARE, sound(3), Machine(source="empty")]))
def test_any_samples_get_a_verdict_that_can_be_written_down(session: Bandwidth, machine: Machine) -> None:
    found = find_bandwidth(replace(machine, bandwidth=session))
    for finding in found:
        assert finding.id in IDS
        assert finding.says
        assert finding.remedy
        assert encode(finding)
    read = checked(session, machine)
    assert checked(read, machine) == read
    assert all(map(encode, find_bandwidth(replace(machine, bandwidth=read))))
    assert all(pair_speeds(read).values())
    judged = with_expectations(session, machine)
    assert [one.median_gb_per_s for one in judged.copies] == [one.median_gb_per_s for one in session.copies]
