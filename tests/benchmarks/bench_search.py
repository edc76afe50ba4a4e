"""Times the search for 8 of 16 GPUs and a place: python -m tests.benchmarks.bench_search [REPEATS].

The ten fastest candidates, and all of them: once with equal GPUs below four switches, once with all links
measured and all GPUs different by 5 %. Beside them how many times longer predicting every candidate by itself
takes, by a sample of them.
"""

import random
import sys
import time
from collections.abc import Callable
from itertools import combinations
from math import comb
from statistics import median

from gputopo.prediction.links.paths import HostLink, PairPath, Paths
from gputopo.prediction.links.shared_links import Uplink
from gputopo.prediction.programs import DEFAULT, require_program
from gputopo.prediction.search import SearchQuestion, fastest
from gputopo.prediction.step import Placement, StepPredictor, model_of, predict
from gputopo.workload.workloads import require

GPUS, SIZE, SAMPLED = 16, 8, 100
PLACINGS = (
    Placement("parameter_server", "cpu"),
    *(Placement("parameter_server", f"gpu:{gpu}") for gpu in range(GPUS)),
    Placement("parameter_server", "gpu:spread"),
    *(Placement("replicated", None, name) for name in ("copy", "nccl")),
)


def switches(noise: float) -> Paths:
    """Return four switches with four GPUs each on two sockets."""
    rates = random.Random(1)

    def about(gb_per_s: float) -> float:
        return gb_per_s * (1 + noise * rates.random())

    return Paths(
        {gpu: HostLink(about(12.5), about(12.0), "measured") for gpu in range(GPUS)},
        {
            (a, b): PairPath(
                "direct", about(12.0 if a // 4 == b // 4 else 10.5 if a // 8 == b // 8 else 9.0), "measured"
            )
            for a, b in combinations(range(GPUS), 2)
        },
        tuple(
            Uplink(frozenset(range(first, first + 4)), about(12.0), about(12.0))
            for first in range(0, GPUS, 4)
        ),
    )


def question(model: str, noise: float) -> SearchQuestion:
    """Return the question which 8 of the 16 GPUs, and which place for the variables."""
    compute = random.Random(2)
    return SearchQuestion(
        switches(noise),
        model_of(require(model)),
        require_program(DEFAULT),
        {gpu: 0.1 * (1 + noise * compute.random()) for gpu in range(GPUS)},
        PLACINGS,
        SIZE,
        lambda a, b: (a // 4 != b // 4) + (a // 8 != b // 8),
    )


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median processor time of `work` in seconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return median(times)


def one_by_one(asked: SearchQuestion) -> float:
    """Return the seconds that predicting each candidate takes, by a sample of them."""
    stepper = StepPredictor(asked.model, asked.program, SIZE)
    some = random.Random(3)
    candidates: list[tuple[tuple[int, ...], Placement]] = []
    while len(candidates) < SAMPLED:
        gpus, placing = tuple(sorted(some.sample(range(GPUS), SIZE))), some.choice(PLACINGS)
        if placing.owner is None or placing.owner in gpus:
            candidates.append((gpus, placing))

    def all_of_them() -> None:
        for gpus, placing in candidates:
            predict(stepper, asked.paths, gpus, max(map(asked.compute_s.__getitem__, gpus)), placing)

    others = sum(placing.owner is None for placing in PLACINGS)
    return seconds(all_of_them, 1) / SAMPLED * comb(GPUS, SIZE) * (SIZE + others)


def main(repeats: int = 5) -> None:
    """Print one line for each model and machine."""
    print(f"{'GPUs':10} {'model':9} {'ten best ms':>12} {'all ms':>9} {'one by one / ten best':>22}")
    for words, noise in (("equal", 0.0), ("different", 0.05)):
        for model in ("alexnet", "resnet50", "vgg16"):
            asked = question(model, noise)
            best = seconds(lambda asked=asked: fastest(asked, range(GPUS), 10), repeats)  # type: ignore[misc]
            everything = seconds(lambda asked=asked: fastest(asked, range(GPUS), 10**6), 1)  # type: ignore[misc]
            ratio = one_by_one(asked) / best
            print(f"{words:10} {model:9} {1000 * best:12.0f} {1000 * everything:9.0f} {ratio:22,.0f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
