from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from tests.kit.scenarios import SCENARIOS
from tests.kit.sysfs import write_tree


def test_the_hops_of_each_machine_follow_from_its_bridges() -> None:
    cases: list[tuple[str, dict[int, int]]] = [
        ("7gforce", {10: 9, 30: 12}),
        ("dual_socket_4_4", {10: 4, 40: 8, 50: 16}),
        ("dgx1", {10: 4, 30: 8, 50: 16}),
        ("desktop", {}),
        ("lost_gpu", {10: 6}),
        ("sixteen", {10: 24, 20: 32, 50: 64}),
    ]
    for name, levels in cases:
        scenario = SCENARIOS[name]
        pairs = combinations(range(len(scenario.gpus)), 2)
        assert Counter(scenario.level(a, b) for a, b in pairs) == levels


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_links_of_a_written_tree_are_relative_and_lead_within_it(name: str, tmp_path: Path) -> None:
    write_tree(SCENARIOS[name], tmp_path)
    links = [path for path in tmp_path.rglob("*") if path.is_symlink()]
    assert len(links) >= len(SCENARIOS[name].gpus)
    for link in links:
        assert not link.readlink().is_absolute()
        assert link.resolve(strict=True).is_relative_to(tmp_path.resolve())
