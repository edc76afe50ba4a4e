"""Hosts that are asked by ssh and srun: what they answer, and one that does not."""

import json
from pathlib import Path

import pytest

from tests.starters.cluster import NODES, Cluster
from tests.starters.runs import GPUTOPO, WAYS, environ

pytestmark = pytest.mark.starters


@pytest.mark.parametrize("way", WAYS)
def test_all_hosts_are_compared_where_the_command_was_typed(hosts: Cluster, way: str, tmp_path: Path) -> None:
    before, after = WAYS[way]
    words = [*before, *GPUTOPO, "inspect", "--fleet", "--json", *after]
    given = {"n": 3, "hosts": ",".join(NODES)}
    code, out, err = hosts.start([word.format(**given) for word in words], environ(tmp_path)).ended()
    assert code == 0, err
    (kind,) = json.loads(out)["kinds"]
    assert kind["hosts"] == list(NODES)
    assert err.count("has answered") == 3


def test_a_first_host_whose_network_is_cut_costs_itself(hosts: Cluster, tmp_path: Path) -> None:
    hosts.unplug("n1")
    try:
        words = [*GPUTOPO, "inspect", "--json", "--hosts", "n1,n9,n2,n3"]
        code, out, err = hosts.start(words, environ(tmp_path)).ended(30)
    finally:
        hosts.plug("n1")
    assert code == 0, err
    found = json.loads(out)
    assert (found["kinds"][0]["hosts"], found["unread"]) == (["n2", "n3"], ["n1", "n9"])
    says = str(found["findings"])
    assert "ssh cannot connect to n1: ssh: connect to host n1 port 22" in says
    assert "ssh: Could not resolve hostname n9" in says
