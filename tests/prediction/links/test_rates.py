"""The fast table of rates against the accounts of every single copy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.prediction.links.flows import Flows
from gputopo.prediction.links.paths import Paths
from gputopo.prediction.links.rates import Rates, RateTable
from tests.prediction.invented import machines


@given(machines(), st.data())
def test_the_table_agrees_with_accounts_of_every_copy(paths: Paths, data: st.DataObject) -> None:
    """With the host, with one owner, and spread over all."""
    pool = sorted(paths.hosts)
    gpus = tuple(sorted(data.draw(st.sets(st.sampled_from(pool), min_size=2))))
    mask = sum(1 << gpu for gpu in gpus)
    table = RateTable(paths, pool)

    host = Flows(paths), Flows(paths)
    for gpu in gpus:
        host[0].from_host(gpu)
        host[1].to_host(gpu)
    owner = data.draw(st.sampled_from(gpus))

    assert table.with_host(gpus, mask) == pytest.approx(_slowest(host))
    assert table.with_owner(owner, gpus, mask) == pytest.approx(
        _slowest(_between(paths, gpus, [float(gpu == owner) for gpu in gpus]))
    )
    assert table.spread(gpus, mask) == pytest.approx(
        _slowest(_between(paths, gpus, [1 / len(gpus)] * len(gpus)))
    )


def _between(paths: Paths, gpus: tuple[int, ...], shares: list[float]) -> tuple[Flows, Flows]:
    weights, gradients = Flows(paths), Flows(paths)
    for owner, share in zip(gpus, shares, strict=True):
        for gpu in gpus:
            weights.between(owner, gpu, share)
            gradients.between(gpu, owner, share)
    return weights, gradients


def _slowest(flows: tuple[Flows, Flows]) -> Rates:
    return Rates(flows[0].slowest[1], flows[1].slowest[1])
