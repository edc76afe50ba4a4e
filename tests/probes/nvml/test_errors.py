from dataclasses import replace

import pynvml

from gputopo.values.machine import Gpu
from tests.kit.distinct import DISTINCT
from tests.kit.machines import read_double
from tests.kit.nvml import FakeNvml
from tests.kit.scenarios import SCENARIOS, changed

FIVE_PLACES = {
    place: (10 * place, 10 * place + 1, 10 * place + 2, 10 * place + 3) for place in (1, 2, 3, 4, 5)
}


ONE = replace(SCENARIOS["four"], gpus=(replace(SCENARIOS["four"].gpus[0], nvlinks=()),))


def first(**fields: object) -> Gpu:
    return read_double(changed(ONE, gpus={0: fields})).gpus[0]


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
    machine = read_double(SCENARIOS["desktop"])
    assert machine.gpus[0].ecc.counts is None
    counts = {path: reason for path, reason in machine.missing.items() if "ecc.counts" in path}
    assert counts == {"gpus[0].ecc.counts": "NOT_SUPPORTED"}


def test_a_place_that_counts_nothing_is_asked_for_once() -> None:
    fake = FakeNvml(changed(ONE, gpus={0: {"ecc_at": {}, "sram_errors": None}}))
    read_double(fake)
    asked = [call for call, gpu in fake.calls if gpu == 0 and "MemoryErrorCounter" in call]
    assert asked == ["nvmlDeviceGetMemoryErrorCounter[1,0,7]", "nvmlDeviceGetMemoryErrorCounter[1,0,2]"]


def test_a_place_that_fails_once_keeps_its_other_counts() -> None:
    fake = FakeNvml(DISTINCT)
    fake.refuse("nvmlDeviceGetMemoryErrorCounter[1,0,2]", 999, gpu=0)
    machine = read_double(fake)
    counts = machine.gpus[0].ecc.counts
    assert counts is not None
    assert "volatile.dram_uncorrectable" not in counts
    assert counts["volatile.dram_correctable"] == 31
    assert machine.missing["gpus[0].ecc.counts.volatile.dram_uncorrectable"] == "UNKNOWN"


def test_the_instances_of_a_split_card_are_counted_over_gaps() -> None:
    assert first(mig=(1, 1), mig_instances=(0, 3, 6)).mig.instances == 3


def test_instances_that_may_not_be_seen_are_missing_with_the_reason() -> None:
    fake = FakeNvml(changed(ONE, gpus={0: {"mig": (1, 1)}}))
    fake.refuse("nvmlDeviceGetMigDeviceHandleByIndex", 4, gpu=0)
    machine = read_double(fake)
    assert (machine.gpus[0].mig.mode, machine.gpus[0].mig.instances) == (True, None)
    assert machine.missing["gpus[0].mig.instances"] == "NO_PERMISSION"


THRESHOLDS = {
    "SHUTDOWN": "shutdown",
    "SLOWDOWN": "slowdown",
    "MEM_MAX": "memory_max_operating",
    "GPU_MAX": "max_operating",
    "ACOUSTIC_CURR": "target",
}


def test_each_threshold_is_asked_by_pynvmls_number() -> None:
    fake = FakeNvml(ONE)
    for place, constant in enumerate(THRESHOLDS):
        number = getattr(pynvml, f"NVML_TEMPERATURE_THRESHOLD_{constant}")
        fake.refuse(f"nvmlDeviceGetTemperatureThreshold[{number}]", 5000 + place)
    missing = read_double(fake).missing
    for place, fact in enumerate(THRESHOLDS.values()):
        assert missing[f"gpus[0].temperature_c.{fact}"] == f"ERROR_{5000 + place}"


CHIPS = ["KEPLER", "MAXWELL", "PASCAL", "VOLTA", "TURING", "AMPERE", "ADA", "HOPPER", "BLACKWELL", "RUBIN"]


def test_the_names_of_architectures_and_brands_are_those_of_pynvmls_constants() -> None:
    architectures = [getattr(pynvml, f"NVML_DEVICE_ARCH_{name}") for name in CHIPS]
    cards = tuple(
        replace(ONE.gpus[0], architecture=number, brand=pynvml.NVML_BRAND_QUADRO_RTX)
        for number in architectures
    )
    gpus = read_double(replace(ONE, gpus=cards)).gpus
    assert [(gpu.architecture or "").split()[0].upper() for gpu in gpus] == CHIPS
    assert gpus[0].brand == "Quadro RTX"


PLACES = ["l1_cache", "l2_cache", "device_memory", "register_file", "texture_memory", "texture_shm", "cbu"]


def test_each_place_that_counts_errors_is_asked_by_pynvmls_number() -> None:
    numbers = {name: getattr(pynvml, f"NVML_MEMORY_LOCATION_{name.upper()}") for name in PLACES}
    counts = first(sram_errors=None, ecc_at={number: (number,) * 4 for number in numbers.values()}).ecc.counts
    assert {name.rpartition(".")[2]: count for name, count in (counts or {}).items()} == numbers


def test_every_field_of_pynvmls_struct_of_errors_is_read() -> None:
    fields = [name for name, _ in pynvml.c_nvmlEccSramErrorStatus_v1_t._fields_ if name != "version"]
    numbers = {name: 100 + place for place, name in enumerate(fields)}
    counts = first(sram_errors=numbers | {"bThresholdExceeded": 1}).ecc.counts or {}
    read = [count for name, count in counts.items() if ".sram_" in name]
    assert sorted(read) == sorted((numbers | {"bThresholdExceeded": 1}).values())
