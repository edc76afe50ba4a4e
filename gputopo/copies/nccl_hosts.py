"""Hosts by nccl-tests, which rank 0 starts on them by mpirun: sendrecv_perf of pairs, all_reduce_perf of all.

Each of the two ranks of sendrecv_perf sends to the other and receives from it at the same time, between the
memories of their GPUs. Its rate is the bytes of one direction over the time in which both have arrived.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gputopo.copies.network import NCCL_TESTS, NcclPrograms, NetworkHost, Timing, ends_of, failure
from gputopo.values.bandwidth import Bandwidth, NotMeasured, Sample

BYTES = 64 * 2**20  # of a message: NCCL is near its rate, and 1 Gbit/s carries 44 of them in 25 s. Ours.
LIMIT_S = 60.0  # of one run: ssh, the start of NCCL on both hosts, and 44 messages. Ours.
ALL_BYTES = 256 * 2**20  # of an all-reduce: from there on its bus bandwidth is judged
ALL_LIMIT_S = 120.0  # NCCL takes half a minute to start on some hundred GPUs; 14 all-reduces. Ours.
_MAX_LOGS = 64  # ranks that log, 12 KB each
_WARM_UP = 2  # messages
_OF_A_WINDOW = 2  # messages
# From SIGTERM, after which mpirun ends its job everywhere, to SIGKILL. Ours.
GRACE_S = 5.0
# What another mpirun, or srun, has set for this process: "mpirun does not support recursive calls", and in a
# step of Slurm it would wait for the CPUs that this step has. Parameters of its networks and of ssh stay, and
# what allows it to run as root.
_OF_STARTERS = re.compile(
    r"(?!(?:OMPI|PRTE|PMIX)_MCA_(?:btl|pml|mtl|oob|coll|plm_rsh|plm_ssh)_)(?!OMPI_ALLOW_RUN_AS_ROOT)"
    r"(?:OMPI|PMIX|PRTE|ORTE|OPAL|PMI|SLURM|HYDRA)_"
)
_SSH = ("OMPI_MCA_plm_rsh_args", "-o BatchMode=yes -o ConnectTimeout=10")
# What would take the log or the ranks away; the others of NCCL decide how it transfers, on all hosts alike.
_NOT_OF_NCCL = re.compile(r"NCCL_(?:DEBUG|TESTS)")
_PASSED_ON = re.compile(rf"(?!{_NOT_OF_NCCL.pattern})NCCL_\w+|LD_LIBRARY_PATH")
_LOG = ("NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,NET")

# A rank ends with the process of Open MPI that started it; an mpirun that Slurm kills would leave it behind.
# Where setpriv of util-linux cannot do that (before 2.33), it ends when its time is over.
_BOUNDED = """\
t="setpriv --pdeathsig KILL"; $t true 2>/dev/null || t=; exec $t timeout -s KILL "$0" $t "$@"\
"""

Pair = tuple[int, int]


class Rate(NamedTuple):
    """GB/s of each direction of a pair while both are used, and what NCCL's log shows of the path."""

    gb_per_s: float
    facts: tuple[str, ...] = ()


def command(
    ranks: Sequence[tuple[str, int]],
    nccl: NcclPrograms,
    timing: Timing,
    *,
    all_reduce: str | None = None,
) -> list[str]:
    """Return the command that measures a pair of hosts, or with `all_reduce`, a program, all of their GPUs.

    `ranks`: the address of each host, and the number of its GPUs that take part.
    """
    places = ",".join(f"{address}:{number}" for address, number in ranks)
    count = sum(number for _, number in ranks)
    size, limit_s = (ALL_BYTES, ALL_LIMIT_S) if all_reduce else (BYTES, LIMIT_S)
    messages = timing.windows * (1 if all_reduce else _OF_A_WINDOW)
    return [
        *(nccl.mpirun, "--bind-to", "none", "--host", places, "-np", str(count)),
        *("sh", "-c", _BOUNDED, f"{limit_s + GRACE_S:g}"),
        *("env", *nccl.variables, *(_LOG if count <= _MAX_LOGS else ()), all_reduce or nccl.program),
        *("-b", str(size), "-e", str(size), "-g", "1", "-w", str(_WARM_UP), "-n", str(messages)),
    ]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of mpirun: those of this process, but for what its own starter has set."""
    own = {
        name: value
        for name, value in environ.items()
        if not _OF_STARTERS.match(name) and not _NOT_OF_NCCL.match(name)
    }
    name, value = _SSH
    return {name: value, **own}


def variables_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that all ranks get, as words of `env`."""
    return tuple(f"{name}={value}" for name, value in environ.items() if _PASSED_ON.fullmatch(name))


def bandwidth_of_pairs(hosts: Sequence[NetworkHost], found: Mapping[Pair, Rate | str]) -> Bandwidth:
    """Return what was measured between the pairs of ranks. A text is why a pair has no rate."""
    rates = [(pair, one) for pair, one in sorted(found.items()) if isinstance(one, Rate)]
    return Bandwidth(
        source="live",
        samples=tuple(_sample(hosts, ends, one) for (a, b), one in rates for ends in ((a, b), (b, a))),
        failures=tuple(failure(hosts, pair, one) for pair, one in found.items() if isinstance(one, str)),
        not_measured=(
            NotMeasured(
                what="one direction alone, all hosts at once, latencies",
                reason="nccl-tests sends in both directions of a pair at once",
            ),
        ),
        notes=(_how([one for _, one in rates]),),
    )


def with_all(measured: Bandwidth, found: Bandwidth | str, gpus: int) -> Bandwidth:
    """Return what was measured between pairs with an all-reduce over all GPUs, or why there is none."""
    if isinstance(found, str):
        why = NotMeasured(what=f"all-reduce over all {gpus} GPUs", reason=found)
        return replace(measured, not_measured=(*measured.not_measured, why))
    return replace(
        measured,
        samples=(*measured.samples, *found.samples),
        failures=(*measured.failures, *found.failures),
        notes=(*measured.notes, *found.notes),
    )


def _sample(hosts: Sequence[NetworkHost], ends: Pair, rate: Rate) -> Sample:
    source, destination = ends_of(hosts, ends)
    return Sample(
        kind="network",
        source=source,
        destination=destination,
        bytes=BYTES,
        with_reverse=True,
        median_gb_per_s=rate.gb_per_s,
        repeats_gb_per_s=(rate.gb_per_s,),
        tool=NCCL_TESTS,
        transport="NCCL",
        nccl=rate.facts,
    )


def _how(rates: Sequence[Rate]) -> str:
    facts = list(dict.fromkeys(fact for rate in rates for fact in rate.facts))
    paths = f"; NCCL's log has {', '.join(facts)}" if facts else ""
    return (
        f"{NCCL_TESTS}: sendrecv_perf between GPU 0 of each two hosts, messages of {BYTES >> 20} MiB in both "
        f"directions at once, the rate of one of them{paths}; hosts are compared with one another only"
    )
