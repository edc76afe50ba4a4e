import pynvml
from hypothesis import given
from hypothesis import strategies as st

from gputopo.reference import CLOCK_EVENT_BITS, decode_clock_events, throttle_reasons
from gputopo.values.machine import Throttle


@given(st.integers(min_value=0, max_value=(1 << 64) - 1))
def test_no_throttle_bit_is_ever_lost(mask: int) -> None:
    words = decode_clock_events(mask)
    bits = [
        CLOCK_EVENT_BITS[word] if word in CLOCK_EVENT_BITS else int(word.removeprefix("unknown_"), 16)
        for word in words
    ]
    assert sum(bits) == mask
    assert len(bits) == mask.bit_count()


def test_the_throttle_words_are_those_of_pynvmls_constants() -> None:
    prefix = "nvmlClocksThrottleReason"
    named = {
        name.removeprefix(prefix).lower(): value
        for name, value in vars(pynvml).items()
        if name.startswith(prefix) and not name.endswith(("None", "All", "UserDefinedClocks"))
    }
    assert named == {word.replace("_", ""): bit for word, bit in CLOCK_EVENT_BITS.items()}


def test_a_capture_that_has_only_words_is_read_by_its_words() -> None:
    assert throttle_reasons(Throttle(reasons=("sw_power_cap",))) == ("sw_power_cap",)
    assert throttle_reasons(Throttle(mask=4, reasons=("sw_power_cap", "new_word"))) == (
        "sw_power_cap",
        "new_word",
    )
    assert throttle_reasons(Throttle()) == ()
