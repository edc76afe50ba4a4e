import pytest

from gputopo.values.finding import Finding
from gputopo.values.machine import Machine
from tests.findings.boxes import all_of, every_gpu, find, gpu, sound
from tests.findings.faults import IDLE

GEFORCE = {"throttle": {"mask": 0}, "pcie": {"gen_max_device": 3}, "nvlinks": (), "ecc": {"mode": None}}


def card(
    name: str, core: tuple[int | None, int], memory: tuple[int | None, int], application: int | None = None
) -> Machine:
    """Return one GPU under load with its clocks, current and max, in MHz."""
    domain = {"now": core[0], "max": core[1], "application": application, "default_application": application}
    return every_gpu(
        **GEFORCE,
        name=name,
        pstate="P2",
        clocks_mhz={
            "graphics": domain,
            "sm": domain,
            "memory": {"now": memory[0], "max": memory[1], "application": None},
        },
    )(sound(1))


def ids(machine: Machine) -> list[str]:
    return [finding.id for finding in find(machine)]


@pytest.mark.parametrize(
    ("name", "core", "memory"),
    [
        ("NVIDIA GeForce RTX 3080", (1890, 2100), (9251, 9501)),  # compute holds it in P2
        ("GeForce GTX 1080 Ti", (1600, 1911), (5005, 5505)),
        ("Tesla T4", (1590, 1590), (5000, 5001)),  # 1 MHz of rounding
        ("NVIDIA GeForce RTX 2080 Ti", (1500, 2100), (6800, 7000)),  # NVML's maximum is never reached
    ],
)
def test_loaded_cards_as_published_are_fine(
    name: str, core: tuple[int, int], memory: tuple[int, int]
) -> None:
    assert ids(card(name, core, memory)) == []


@pytest.mark.parametrize(("now", "expected"), [(1377, []), (1376, ["clocks.core_below_maximum"])])
def test_a_tenth_under_what_is_expected_is_still_fine(now: int, expected: list[str]) -> None:
    assert ids(gpu(0, clocks_mhz={"sm": {"now": now}})(sound(1))) == expected  # 0.9 x 1530 = 1377


def test_of_an_unknown_card_only_a_large_gap_is_reported() -> None:
    # Rated boost clocks are 0.68 and more of NVML's maximum.
    fine = card("NVIDIA Future 9000", (1400, 2100), (7000, 7000))
    low = card("NVIDIA Future 9000", (1360, 2100), (7000, 7000))
    assert ids(fine) == ["card.no_expectation"]
    assert ids(low) == ["clocks.core_below_maximum", "card.no_expectation"]


@pytest.mark.parametrize(
    "quiet",
    [
        IDLE,
        {"pstate": "P8"},
        {"throttle": {"mask": 1}},
        {"utilization_percent": {"gpu": 10}},
        {"pstate": None},
    ],
)
def test_low_clocks_of_a_card_that_is_hardly_loaded_are_no_finding(quiet: dict[str, object]) -> None:
    low = {"sm": {"now": 300}, "graphics": {"now": 300}, "memory": {"now": 405}}
    assert ids(gpu(1, **(quiet | {"clocks_mhz": low}))(sound())) == []


def only(machine: Machine) -> Finding:
    (finding,) = find(machine)
    return finding


def test_reference_cards_beside_overclocked_ones_differ_in_the_core_and_not_in_memory() -> None:
    machine = all_of(*(gpu(n, clocks_mhz={"sm": {"max": 1620}}) for n in (0, 2, 3)))(sound())
    found = only(machine)  # three of four have 1620: the fourth is the one that differs
    assert (found.id, found.subject.text, found.severity) == ("clocks.core_differs", "gpu:1", "info")
    assert found.evidence == {"clocks_mhz.sm.max": 1530, "peers": {"clocks_mhz.sm.max": 1620}}


def test_of_two_cards_neither_is_at_fault() -> None:
    found = only(gpu(0, clocks_mhz={"sm": {"max": 1600}})(sound(2)))
    assert (found.id, found.subject.text) == ("clocks.core_differs", "gpus:0-1")
    assert found.says == "SM clock max 1600 MHz (GPU 0), 1530 MHz (GPU 1)"
    found = only(gpu(1, clocks_mhz={"memory": {"max": 860}})(sound(2)))
    assert (found.id, found.subject.text, found.severity) == ("clocks.memory_differs", "gpus:0-1", "warning")


def test_cards_of_other_models_are_no_peers() -> None:
    machine = gpu(1, name="Tesla V100-PCIE-16GB", clocks_mhz={"sm": {"max": 1380}}, nvlinks=())(sound(2))
    assert ids(machine) == ["machine.mixed_models"]
