from collections import Counter
from itertools import combinations

from tests.kit.scenarios import SCENARIOS


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
