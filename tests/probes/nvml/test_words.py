import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.probes.nvml.words import (
    ARCHITECTURES,
    BRANDS,
    MEMORY_LOCATIONS,
    SRAM_COUNTS,
    THRESHOLDS,
    THROTTLE_REASONS,
    throttle_reasons,
)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0, ()),
        (0x1, ("gpu_idle",)),
        (0x24, ("sw_power_cap", "sw_thermal_slowdown")),
        (0x1A8, ("hw_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting")),
        (0x800, ("unknown_0x800",)),
    ],
)
def test_throttle_bits_are_told_in_words(mask: int, words: tuple[str, ...]) -> None:
    assert throttle_reasons(mask) == words


@given(st.integers(min_value=0, max_value=(1 << 64) - 1))
def test_no_throttle_bit_is_ever_lost(mask: int) -> None:
    numbers = {word: bit for bit, word in THROTTLE_REASONS.items()}
    words = throttle_reasons(mask)
    bits = [numbers[word] if word in numbers else int(word.removeprefix("unknown_"), 16) for word in words]
    assert sum(bits) == mask
    assert len(bits) == mask.bit_count()


def test_the_throttle_words_are_those_of_pynvmls_constants() -> None:
    prefix = "nvmlClocksThrottleReason"
    named = {
        name.removeprefix(prefix).lower(): value
        for name, value in vars(pynvml).items()
        if name.startswith(prefix) and not name.endswith(("None", "All", "UserDefinedClocks"))
    }
    assert named == {word.replace("_", ""): bit for bit, word in THROTTLE_REASONS.items()}


def test_the_words_are_those_of_pynvmls_constants() -> None:
    thresholds = {
        "shutdown": pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
        "slowdown": pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        "memory_max_operating": pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
        "max_operating": pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
        "target": pynvml.NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_CURR,
    }
    assert thresholds == THRESHOLDS
    for name, code in MEMORY_LOCATIONS.items():
        assert getattr(pynvml, f"NVML_MEMORY_LOCATION_{name.upper()}") == code
    for code, words in ARCHITECTURES.items():
        assert getattr(pynvml, f"NVML_DEVICE_ARCH_{words.split()[0].upper()}") == code
    assert (BRANDS[pynvml.NVML_BRAND_GEFORCE], BRANDS[pynvml.NVML_BRAND_QUADRO_RTX]) == (
        "GeForce",
        "Quadro RTX",
    )
    fields = {field for field, _ in pynvml.c_nvmlEccSramErrorStatus_v1_t._fields_}
    assert set(SRAM_COUNTS.values()) == fields - {"version"}
