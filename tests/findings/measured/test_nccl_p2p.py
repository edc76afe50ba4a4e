"""The setting of NCCL excludes what it should, keeps the rest or names what it does not, on any machine."""

from collections.abc import Mapping
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from gputopo.findings.measured.nccl_p2p import P2P_OFF, cutoff, has_nvlink
from gputopo.values.machine import Gpu, Hop, Link, Machine, NvLink
from tests import there

Pair = tuple[int, int]
PAIRS = list(combinations(range(4), 2))
# How NCCL names the distance of a pair without NVLink, near to far.
NEAR_TO_FAR: dict[Hop, int] = {
    Hop.INTERNAL: 1, Hop.PIX: 1, Hop.PXB: 2, Hop.PHB: 3, Hop.NODE: 3, Hop.SYS: 4,
}  # fmt: skip
REACH = {P2P_OFF: -1, "NCCL_P2P_LEVEL=NVL": 0, "NCCL_P2P_LEVEL=PIX": 1, "NCCL_P2P_LEVEL=PXB": 2,
         "NCCL_P2P_LEVEL=PHB": 3}  # fmt: skip


def machine(hops: Mapping[Pair, Hop | None], nvlinks: Mapping[Pair, bool]) -> Machine:
    links = tuple(Link(a=a, b=b, hop=hops[a, b], nvlinks=4 if nvlinks[a, b] else 0) for a, b in PAIRS)
    return Machine(source="a test", gpus=tuple(Gpu(index=index) for index in range(4)), links=links)


def of_pairs(values: st.SearchStrategy[object]) -> st.SearchStrategy[dict[Pair, object]]:
    return st.fixed_dictionaries(dict.fromkeys(PAIRS, values))


@given(
    hops=of_pairs(st.sampled_from([*Hop, None])),
    nvlinks=of_pairs(st.sampled_from([False, False, True])),
    slow=st.sets(st.sampled_from(PAIRS), min_size=1),
)
def test_a_setting_excludes_the_pairs_and_what_else_it_excludes_is_named(
    hops: dict[Pair, Hop | None], nvlinks: dict[Pair, bool], slow: set[Pair]
) -> None:
    found = cutoff(machine(hops, nvlinks), slow)
    if any(nvlinks[pair] for pair in slow):
        assert found is None
        return
    if found is None:
        assert any(hops[pair] is None for pair in slow)
        return
    setting, also = found
    assert setting != P2P_OFF or not any(nvlinks.values())
    reach = REACH[setting]
    for pair, hop in hops.items():
        distance = 0 if nvlinks[pair] else None if hop is None else NEAR_TO_FAR[hop]
        if pair in slow:
            assert distance is None or distance > reach
        else:
            kept = distance is not None and distance <= reach
            assert kept is (pair not in also)


def test_a_port_that_is_up_is_an_nvlink_even_where_its_pair_is_unknown() -> None:
    for active, has in ((True, True), (None, True), (False, False)):
        gpus = tuple(Gpu(index=index, nvlinks=(NvLink(link=0, active=active),)) for index in range(2))
        box = Machine(source="a test", gpus=gpus, links=(Link(a=0, b=1, hop=Hop.PIX),))
        assert has_nvlink(box) is has
        found = there(cutoff(box, [(0, 1)]))
        assert (found[0] == P2P_OFF) is not has
