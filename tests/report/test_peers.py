import re

from gputopo.report.layout import text_of
from gputopo.report.peers import peers_view
from gputopo.values.machine import Gpu, Link, Machine


def shown(*links: Link) -> str:
    gpus = tuple(Gpu(index=n) for n in range(8))
    return text_of(peers_view(Machine(source="x", gpus=gpus, links=links), 78))


def test_one_state_for_all_pairs_is_said_in_a_line() -> None:
    links = [Link(a=a, b=a + 1, p2p_read="OK", p2p_write="OK") for a in range(4)]
    assert shown(*links) == "Peer access  OK: all pairs\n"


def test_pairs_that_are_off_are_named_with_nvmls_word_and_the_reason() -> None:
    text = shown(
        Link(a=0, b=1, p2p_read="OK", p2p_write="OK"),
        Link(a=0, b=2, p2p_read="CHIPSET_NOT_SUPPORTED", p2p_write="OK", p2p_reason="the chipset"),
        Link(a=1, b=2, p2p_read="CHIPSET_NOT_SUPPORTED", p2p_write="OK", p2p_reason="the chipset"),
    )
    assert "OK: GPUs 0 and 1" in text
    told = " ".join(text.split())
    assert "read CHIPSET_NOT_SUPPORTED, write OK: each of GPUs 0-1 with 2 (the" in told


def test_a_direction_that_is_not_told_is_not_made_up() -> None:
    assert shown(Link(a=0, b=1, p2p_read="OK")) == "Peer access  OK (read): GPUs 0 and 1\n"


def test_nothing_is_said_where_nothing_is_told() -> None:
    assert shown(Link(a=0, b=1)) == ""


def test_very_many_pairs_are_told_in_short() -> None:
    links = [Link(a=a, b=b, p2p_read="NOT_SUPPORTED") for b in range(8) for a in range(b)]
    assert "NOT_SUPPORTED (read): any two of GPUs 0-7" in shown(*links, Link(a=7, b=8))
    assert re.search(r"pairs 0<->2, 0<->3, (?:.|\n)* and 15 more", shown(*links[1:], Link(a=7, b=8)))
