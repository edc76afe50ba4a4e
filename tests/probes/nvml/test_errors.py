import pynvml
import pytest

from gputopo.probes.nvml.words import ARCHITECTURES, BRANDS, MEMORY_LOCATIONS, SRAM_COUNTS, THRESHOLDS
from gputopo.values.machine import Gpu
from tests.kit.distinct import DISTINCT
from tests.kit.nvml import FakeNvml
from tests.kit.scenarios import SCENARIOS, changed
from tests.probes.nvml.test_gpu import read

FIVE_PLACES = {
    place: (10 * place, 10 * place + 1, 10 * place + 2, 10 * place + 3) for place in (1, 2, 3, 4, 5)
}


def first(**fields: object) -> Gpu:
    return read(FakeNvml(changed(SCENARIOS["four"], gpus={0: fields}))).gpus[0]


def test_an_old_card_counts_every_memory_of_the_chip() -> None:
    counts = first(sram_errors=None, ecc_at=FIVE_PLACES).ecc.counts
    assert counts is not None
    assert counts["volatile.single_bit.device_memory"] == 20
    assert counts["aggregate.double_bit.device_memory"] == 23
    assert counts["aggregate.single_bit.l2_cache"] == 11
    assert counts["volatile.double_bit.texture_shm"] == 52
    assert len(counts) == 4 * 5


def test_a_newer_card_counts_its_own_memories_together() -> None:
    counts = first(sram_errors=None, ecc_at={2: (1, 2, 3, 4), 7: (5, 6, 7, 8)}).ecc.counts
    assert counts == {
        "volatile.sram_correctable": 5,
        "aggregate.sram_correctable": 6,
        "volatile.sram_uncorrectable": 7,
        "aggregate.sram_uncorrectable": 8,
        "volatile.dram_correctable": 1,
        "aggregate.dram_correctable": 2,
        "volatile.dram_uncorrectable": 3,
        "aggregate.dram_uncorrectable": 4,
    }


def test_a_card_without_error_correction_has_one_reason_for_all_counts() -> None:
    machine = read(FakeNvml(SCENARIOS["desktop"]))
    assert machine.gpus[0].ecc.counts is None
    counts = {path: reason for path, reason in machine.missing.items() if "ecc.counts" in path}
    assert counts == {"gpus[0].ecc.counts": "NOT_SUPPORTED"}


def test_a_place_that_counts_nothing_is_asked_for_once() -> None:
    fake = FakeNvml(changed(SCENARIOS["four"], gpus={0: {"ecc_at": {}, "sram_errors": None}}))
    read(fake)
    asked = [call for call, gpu in fake.calls if gpu == 0 and "MemoryErrorCounter" in call]
    assert asked == ["nvmlDeviceGetMemoryErrorCounter[1,0,7]", "nvmlDeviceGetMemoryErrorCounter[1,0,2]"]


def test_a_place_that_fails_once_keeps_its_other_counts() -> None:
    fake = FakeNvml(DISTINCT)
    fake.refuse("nvmlDeviceGetMemoryErrorCounter[1,0,2]", 999, gpu=0)
    machine = read(fake)
    counts = machine.gpus[0].ecc.counts
    assert counts is not None
    assert "volatile.dram_uncorrectable" not in counts
    assert counts["volatile.dram_correctable"] == 31
    assert machine.missing["gpus[0].ecc.counts.volatile.dram_uncorrectable"] == "UNKNOWN"


@pytest.mark.parametrize("split", [(), (0,), (0, 3, 6)])
def test_the_instances_of_a_split_card_are_counted_over_gaps(split: tuple[int, ...]) -> None:
    assert first(mig=(1, 1), mig_instances=split).mig.instances == len(split)


def test_instances_that_may_not_be_seen_are_missing_with_the_reason() -> None:
    fake = FakeNvml(changed(SCENARIOS["four"], gpus={0: {"mig": (1, 1)}}))
    fake.refuse("nvmlDeviceGetMigDeviceHandleByIndex", 4, gpu=0)
    machine = read(fake)
    assert (machine.gpus[0].mig.mode, machine.gpus[0].mig.instances) == (True, None)
    assert machine.missing["gpus[0].mig.instances"] == "NO_PERMISSION"


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
