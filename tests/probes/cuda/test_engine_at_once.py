"""Many copies between GPUs in one window: a ring, one to all, all to one, all pairs."""

import pytest

from gputopo.copies.copies import Copy
from tests.kit.cuda.scenario import CudaSpec
from tests.probes.cuda.doubled import MIB, box, direct, measure, needs_gcc, read, together, write

pytestmark = needs_gcc

WITHIN = 0.03
SIZE = 32 * MIB


def patterns(count: int) -> dict[str, tuple[list[Copy], int]]:
    """Return copies by name, and how many of them share a link of a GPU in one direction."""
    gpus = range(count)
    return {
        "ring": ([direct(gpu, (gpu + 1) % count) for gpu in gpus], 1),
        "ring of kernels": ([write(gpu, (gpu + 1) % count) for gpu in gpus], 1),
        "one to all": ([direct(0, gpu) for gpu in gpus if gpu], count - 1),
        "one to all of a kernel": ([write(0, gpu) for gpu in gpus if gpu], count - 1),
        "all to one": ([direct(gpu, 0) for gpu in gpus if gpu], count - 1),
        "all to one of a kernel": ([read(gpu, 0) for gpu in gpus if gpu], count - 1),
        "all pairs": ([direct(a, b) for a in gpus for b in gpus if a != b], count - 1),
    }


def uniform(name: str, *words: str) -> CudaSpec:
    """Return a machine where each GPU has links of 10 GB/s out and in, and nothing else is narrow."""
    spec = box(name, "start=0", "peers=0", *words, memory=1 << 30)
    resources = {f"{way} {gpu}": 10e9 for way in ("out", "in") for gpu in range(len(spec.gpus))}
    routes = {
        key: type(route)(((f"out {key[1]}", 1.0), (f"in {key[2]}", 1.0)), route.latency_us, route.chase_ns)
        if key[0] in ("p2p", "read", "write")
        else route
        for key, route in spec.routes.items()
    }
    return type(spec)(
        gpus=spec.gpus,
        resources={**spec.resources, **resources},
        routes=routes,
        peers=frozenset((a, b) for a in range(len(spec.gpus)) for b in range(len(spec.gpus)) if a != b),
        cpus=spec.cpus,
        settings=spec.settings,
    )


@pytest.mark.parametrize(("name", "count"), [("8switch", 8), ("sixteen", 16)])
def test_each_copy_has_its_share_of_what_they_pass_together(name: str, count: int) -> None:
    wanted = patterns(count)
    jobs = [together(*copies) for copies, _ in wanted.values()]
    report = measure(uniform(name), jobs, SIZE)
    for window, (pattern, (_, sharing)) in zip(report.windows, wanted.items(), strict=True):
        assert [copy.failure for copy in window.copies] == [None] * len(window.copies), pattern
        for copy in window.copies:
            assert copy.gb_per_s == pytest.approx(10 / sharing, rel=WITHIN), pattern
            assert copy.bytes == SIZE, pattern
