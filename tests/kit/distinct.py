"""The machine `four` with numbers that all differ, so that a test sees whether each is in its place.

It is not healthy: it has errors of every kind, and processes.
"""

from tests.kit.scenarios import SCENARIOS
from tests.kit.specs import NvLinkSpec, ProcessSpec, changed

_NUMBERS = {
    "violations": {0: 11, 1: 12, 2: 0, 3: 0, 4: 15, 5: 0, 10: 17, 11: 18},
    "power_default_mw": 399_000,
    "power_enforced_mw": 398_000,
    "power_range_mw": (100_000, 405_000),
    "fields": {193: -8, 194: -2, 196: -1, 230: 4},
    "margin": 57,
    "replays": 4,
    "aer": (21, 22, 23),
    "memory_bytes": (42_949_672_960, 1_073_741_824, 41_875_931_136),
    "utilization": (7, 3),
    "ecc_errors": (5, 6, 7, 8),
    "ecc_at": {2: (31, 32, 33, 34)},
    "sram_errors": {"volatileCor": 41, "aggregateUncParity": 42, "bThresholdExceeded": 1},
    "c2c": 1,
    "fabric": {"state": 3, "status": 23, "cliqueId": 7, "healthMask": 0x2599},
    "remapped_rows": (1, 2, 0, 0),
    "spare_rows": {"max": 630, "high": 5, "partial": 3, "low": 2, "none": 1},
    "repairs": {"bChannelRepairPending": 1, "bTpcRepairPending": 0},
    "unrepairable": {"unrepairableMemory": 1},
    "default_clocks": {0: 1095, 2: 1215},
    "retired_pages": (2, 1),
}

DISTINCT = changed(
    SCENARIOS["four"],
    gpus={
        index: {
            **_NUMBERS,
            "processes": (ProcessSpec(4000 + index, "compute", 1 << 30), ProcessSpec(77, "mps", None)),
            "nvlinks": tuple(
                NvLinkSpec(1 - index, 4, {0: 1, 1: 2, 2: 3, 3: 4}, {163: 5, 219: 6}, 25_781) for _ in range(2)
            )
            if index < 2
            else (),
        }
        for index in range(4)
    },
)
