import pynvml

from gputopo.probes.nvml.words import (
    ARCHITECTURES,
    BRANDS,
    MEMORY_LOCATIONS,
    SRAM_COUNTS,
    THRESHOLDS,
)


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
