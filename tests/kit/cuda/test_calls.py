import pytest

from tests.kit.cuda import build
from tests.kit.cuda.calling import box, driven

pytestmark = pytest.mark.skipif(build.why_not() is not None, reason=build.why_not() or "")
NOT_READY = 600


def splitmix64(x: int) -> int:
    mask = 2**64 - 1
    z = (x + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_the_cards_are_those_of_the_scenario() -> None:
    said = driven(box("7gforce"), "begin")
    assert said["version"] == 12_040
    assert said["gpus"][6] == ["0000:0d:00.0", "GeForce GTX 1080"]
    assert [address for address, _ in said["gpus"]] == [
        f"0000:{bus}:00.0" for bus in ("05", "06", "07", "0a", "0b", "0c", "0d")
    ]
    assert said["error"] == "CUDA_ERROR_LAUNCH_FAILED"
    assert said["waits"] == "there"


def test_cuda_may_count_the_cards_in_another_order() -> None:
    spec = box("7gforce", "reversed", "rate@h2d:6=2")
    assert driven(spec, "begin")["gpus"][0] == ["0000:0d:00.0", "GeForce GTX 1080"]
    rates = driven(spec, "rates", ways=[["h2d", 0]], size=8 << 20)
    assert rates == [[pytest.approx(2e9, rel=2e-3)]]


def test_a_box_without_devices_and_an_old_driver_report_it() -> None:
    assert driven(box("four", "nodevice"), "begin") == {"init": 100}
    assert driven(box("four", "init=999"), "begin") == {"init": 999}
    said = driven(box("four", "oldsymbols"), "begin")["waits"]
    assert "cuStreamWaitValue32" in said
    assert "not found" in said


def test_an_event_is_not_ready_while_held_and_for_some_polls_after() -> None:
    said = driven(box("four", "polls=2"), "polls")
    assert said["held"] == [NOT_READY] * 8
    assert said["early"] == NOT_READY
    assert said["running"] == [NOT_READY, NOT_READY, 0, 0]
    assert (said["stream"], said["first"]) == (0, 0)


def test_a_host_function_holds_streams_from_a_thread_of_its_own() -> None:
    said = driven(box("four"), "host_function", size=1 << 20)
    assert said == {"held": [NOT_READY] * 6, "own_thread": False, "calls": 1}


def test_a_kernel_that_touches_what_it_may_not_spoils_its_card() -> None:
    said = driven(box("four"), "kernels", words=16)
    assert said["forbidden"] == 700
    assert said["after"] == 700


@pytest.mark.parametrize("way", [["h2d", 1], ["p2p", 0, 1]])
def test_bytes_arrive_as_they_were(way: list[int]) -> None:
    assert driven(box("four"), "bytes_moved", way=way, size=100_003) == 0


@pytest.mark.parametrize(
    ("fault", "way", "differ"),
    [
        ("wrong@h2d:1", ["", 1], 1),
        ("wrong@d2h:1", ["", 1], 1),
        ("wrong@h2d:2", ["", 1], 0),
        ("wrong@h2d:1=1", ["", 1], 0),
        ("wrong@h2d:1+spare=100003", ["", 1], 1),
        ("wrong@h2d:1+spare=100004", ["", 1], 0),
        ("wrong@staged:0-1", ["", 0, 1], 1),
        ("wrong@staged:1-0", ["", 0, 1], 0),
    ],
)
def test_a_wrong_byte_is_where_it_was_asked_for(fault: str, way: list[int], differ: int) -> None:
    assert driven(box("four", *fault.split("+")), "bytes_moved", way=way, size=100_003) == differ


def test_a_sound_card_refuses_only_what_it_must() -> None:
    said = driven(box("four"), "refusals", a=1, b=2)
    assert said == {
        "can": 1,
        "open": 0,
        "again": 704,
        "small": 0,
        "large": 0,
        "more": 2,
        "used": 0,
        "hold": 0,
        "copies": [0] * 5,
        "others": 0,
    }


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("nop2p@1-2", {"can": 0, "open": 217, "again": 217}),
        ("nomem@1=2000000", {"small": 0, "large": 2}),
        ("nowaitvalue@1", {"hold": 801}),
        ("fail@h2d:1=1", {"copies": [1] * 5}),
        ("fail@h2d:1=1,2", {"copies": [0, 0, 1, 1, 1]}),
        ("late@h2d:1=719", {"copies": [719] * 5}),
        ("lost@1=719,2", {"copies": [0, 719, 719, 719, 719]}),
        ("hang@h2d:1+block=0.02", {"copies": [702] * 5}),
    ],
)
def test_a_fault_is_on_its_path_and_nowhere_else(fault: str, expected: dict[str, object]) -> None:
    said = driven(box("four", *fault.split("+")), "refusals", a=1, b=2)
    assert {name: said[name] for name in expected} == expected
    sound = {"open": 0, "small": 0, "large": 0, "hold": 0, "copies": [0] * 5, "others": 0}
    kept = {name: value for name, value in sound.items() if name not in expected}
    assert {name: said[name] for name in kept} == kept


@pytest.mark.parametrize(
    "word", ["nonsense", "wrong@h2d:9", "wrong@0-1", "fail@h2d:1", "lost@7", "rate@h2d:1=0", "nop2p@0-9"]
)
def test_a_word_that_does_not_go_with_the_machine_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=word):
        box("four", word)
