"""Numbers that decide something outside of the findings, apart from the code that declares them."""

from importlib import import_module

import pytest

NUMBERS: dict[str, dict[str, float]] = {
    "copies.budget": {"FEWEST_REPEATS": 3},
    "copies.collectives": {
        "RING_BYTES": 268_435_456,
        "RING_LOW_SHARE": 0.75,
        "FEW_LOW_SHARE": 0.50,
        "PCIE_BYTES": 33_554_432,
        "PCIE_LOW_SHARE": 0.15,
        "EXCHANGE_LOW_SHARE": 0.20,
    },
    "findings.measured.difference": {"MIN_CHANGE": 0.03, "MIN_CHANGE_SMALL": 0.15, "DEVIATIONS": 3.0},
    "copies.expected": {
        "LOCAL_COPY_SHARE": 0.80,
        "LOCAL_COPY_LOW_SHARE": 0.70,
        "ECC_LOW_SHARE": 0.80,
        "BIDIRECTIONAL_SHARE": 0.90,
        "BIDIRECTIONAL_LOW_SHARE": 0.80,
        "PAIR_LOW_SHARE": 0.80,
    },
    "copies.numbers": {"LARGE_BYTES": 16_777_216, "DEVIATION": 1.4826, "AGREE_SHARE": 0.05},
    "copies.physics": {
        "AT_ONCE_NOISE": 1.10,
        "AT_ONCE_LOW_SHARE": 0.85,
        "AT_ONCE_NVLINK": 1.3,
        "AT_ONCE_SUM": 1.5,
        "OVER_HOST": 3.0,
    },
    "copies.pair_speeds": {"SAME_SPEED": 1.10, "WIDEST_CLASS": 1.5, "CLEARLY_SLOWER": 1.03},
    "copies.settling": {
        "DEVIATIONS": 4.5,
        "FEWEST_LATER": 2,
        "RAMP_UP_SHARE": 0.90,
        "RAMP_UP_OF_PUBLISHED": 0.60,
        "FEWEST_SWEPT": 3,
    },
    "copies.sharing": {"CHANGED_SHARE": 0.06, "LEVEL_SHARE": 0.15, "BIDIRECTIONAL_SHARE": 0.75},
    "findings.measured.validity": {"SUM_TOLERANCE": 0.2},
    "launch.jobs.leftovers": {"TERM_S": 5.0, "KILL_S": 10.0},
    "launch.jobs.program": {"ONE_REQUEST_S": 0.05},
    "launch.jobs.reduction.bench": {"REPEATS": 10, "WARM_UP": 3, "SILENCE_LIMIT_S": 120.0},
    "launch.spec.prepare": {
        "CPU_TIME_BUDGET_S": 45.0,
        "CPU_MAX_BATCHES": 50,
        "CPU_WARMUP_BATCHES": 3,
        "GPU_BATCHES": 100,
        "GPU_WARMUP_BATCHES": 10,
    },
    "launch.supervise.failure": {"LARGE_SHARE": 0.25},
    "launch.supervise.watchdog": {
        "HANG_FACTOR": 50.0,
        "HANG_MIN_S": 120.0,
        "PHASE_S": 1800.0,
        "START_S": 3600.0,
        "LOOK_S": 5.0,
        "LATE_S": 1.0,
        "MEDIAN_STEPS": 20,
        "SIGN_S": 10.0,
        "SIGN_STEPS": 3.0,
        "BUSY_CPUS": 0.1,
    },
    "launch.supervise.worker_life": {"CPU_S": 1.0},
    "planner.placement_rule": {"MAX_GPUS_ON_GPU_PS": 2},
    "planner.subsets": {"MAX_STEPS": 2_000_000},
    "prediction.calibration": {
        "MAX_FACTOR": 2.0,
        "ODD_FACTOR": 1.5,
        "DOUBTFUL": 0.1,
        "PULL": 0.08,
        "RANGE_JOBS": 4,
    },
    "probes.cuda.blocking": {"PATIENCE_S": 5.0},
    "probes.session.conditions": {"RISING_BELOW": 0.92},
    "probes.session.ramp_up": {"MIN_S": 0.25, "MAX_S": 1.5},
    "probes.session.repeats": {"EXTRA_REPEATS": 4, "MAX_RAMP_UP_S": 1.5},
    "reference.expectations": {"FITTING_SHARE": 0.95},
    "runs.verdict.blocks": {"CAPACITY": 500, "FOLD": 5, "MEAN_LIMIT": 0.7},
    "runs.verdict.host": {
        "OTHER_CPU_SHARE": 0.10,
        "CORES_TAKEN_SHARE": 0.90,
        "SWAP_BYTES_PER_S": 1_048_576.0,
        "MEMORY_AVAILABLE_SHARE": 0.02,
        "BUSY_SHARE": 0.20,
    },
    "runs.verdict.judge": {
        "SLOW_PERCENT": 3.0,
        "EVEN_PERCENT": 5.0,
        "POWER": 0.95,
        "MARKS_OFFSET_S": 0.15e-3,
        "MARKS_RESOLUTION_S": 0.5e-3,
    },
    "runs.verdict.paces": {"GONE_STEPS": 10},
    "runs.verdict.peers": {"FALSE_ALARM": 0.001, "WHOLE_SHARE": 0.5},
    "runs.verdict.steps_kept": {"CAPACITY": 400},
    "runs.input_verdict": {"NOISE": 0.05, "ENOUGH": 1.2, "MIN_STEPS": 10},
    "runs.median_bound": {"MAX_LAG": 50, "BIAS_ROUNDS": 3, "MIN_EFFECTIVE": 2.0, "SHORTAGE": 2.0},
    "values.run.plan": {"SURE_MARGIN": 0.05, "MIN_JOBS": 2},
    "values.history": {"BUSY_PERCENT": 50, "MEAN_WEIGHT": 0.1, "MAX_GAP_S": 60.0, "MAX_KINDS": 64},
    "runs.predicted.past": {"MAX_JOBS": 12, "MAX_UNCERTAINTY": 0.02, "MAX_UNSTEADY": 0.25},
    "runs.steadiness": {
        "LEVEL_SHARE": 0.05,
        "MIN_STEPS": 20,
        "HEAD_STEPS": 5,
        "HORIZON_STEPS": 50,
        "MAX_STEPS": 600,
        "MAX_BLOCKS": 30,
        "MEDIAN_EFFICIENCY": 1.2533,
        "SIGMAS": 3.0,
    },
    "runs.throughput": {"MAD_TO_SIGMA": 1.4826},
    "topology.hops": {"UNKNOWN_LEVEL": 60},
    "topology.peer_access": {"SMALL_BAR1_MIB": 256},
}


@pytest.mark.parametrize("module", NUMBERS)
def test_every_number_that_decides_something_is_as_its_origin_states(module: str) -> None:
    found = vars(import_module(f"gputopo.{module}"))
    assert {name: found[name] for name in NUMBERS[module]} == NUMBERS[module]
