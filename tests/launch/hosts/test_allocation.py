"""Which hosts train together, and which of them this is, by starters and options."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch import Allocation, FoundHosts, HostOptions, find_hosts
from gputopo.launch.hosts import HostAddress, read_hosts
from gputopo.values.errors import ExitCode, InputError, UsageError
from gputopo.values.option import given_of
from tests.launch.hosts.environs import (
    INDEXED_JOB,
    JOBSET,
    SLURM_24,
    SLURM_JOB,
    TRAIN_JOB,
    Environ,
    intel_mpi,
    open_mpi_4,
    open_mpi_5,
    ray_train,
    slurm_step,
    tf_config,
    tf_job,
    torchrun,
)


def test_a_hostfile_and_a_list_are_hosts(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("n1 slots=4\nn2 slots=4\n")
    given = given_of(HostOptions, {"hostfile": str(file), "node_rank": "1"})
    assert given.fields == {"hostfile": (HostAddress("n1"), HostAddress("n2")), "node_rank": 1}
    assert given_of(HostOptions, {"hosts": "n[1-2]"}).fields == {
        "hosts": (HostAddress("n1"), HostAddress("n2"))
    }


def test_a_hostfile_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--hostfile .* cannot be read: No such file"):
        given_of(HostOptions, {"hostfile": str(tmp_path / "none")})
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        given_of(HostOptions, {"hostfile": str(tmp_path / "bytes")})


@pytest.mark.parametrize(("name", "text"), [("node_rank", "-1"), ("num_hosts", "0"), ("num_hosts", "two")])
def test_a_number_out_of_range_is_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError, match="--n"):
        given_of(HostOptions, {name: text})


SILENT = HostOptions()


def asked(hosts: str = "", *, num_hosts: int | None = None, node_rank: int | None = None) -> HostOptions:
    named = read_hosts("--hosts", hosts) if hosts else ()
    return HostOptions(hosts=named, num_hosts=num_hosts, node_rank=node_rank)


Shown = tuple[int, str, str, str | None]


def shown(found: FoundHosts | None) -> Shown:
    """Return rank, hosts, source and job."""
    assert isinstance(found, Allocation)
    assert (found.size, found.leader) == (len(found.hosts), found.hosts[0])
    return found.rank, " ".join(map(str, found.hosts)), found.source, found.job


PODS = " ".join(f"mnist-{name}.kubeflow.svc:2222" for name in ("chief-0", "worker-0", "worker-1"))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({**slurm_step(node=1), **SLURM_24}, (1, "n1 n2", "Slurm step 1234.0", "1234.0")),
        (slurm_step("n[9-10]", 1, step="3"), (1, "n9 n10", "Slurm step 1234.3", "1234.3")),
        ({**open_mpi_4(1, 3), "MASTER_ADDR": "10.0.0.1"}, (1, "10.0.0.1 ? ?", "Open MPI", "3512795137")),
        ({**open_mpi_5(1), "MASTER_ADDR": "n1"}, (1, "n1 ?", "Open MPI", "prterun-n1-8525@1")),
        ({**intel_mpi(1), "MASTER_ADDR": "n1"}, (1, "n1 ?", "MPI (PMI_SIZE)", None)),
        (torchrun(1), (1, "n1:29500 ?", "WORLD_SIZE", None)),
        (TRAIN_JOB, (1, "mnist-node-0-0.mnist:29500 ?", "PET_NNODES", None)),
        (tf_job("worker", 1), (2, PODS, "TF_CONFIG", None)),
        (ray_train(1), (1, "10.0.0.1:43211 10.0.0.2:41877", "TF_CONFIG", None)),
    ],
)
def test_each_starter_gives_rank_and_addresses(environ: Environ, expected: Shown) -> None:
    assert shown(find_hosts(SILENT, environ)) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {},
        SLURM_JOB,
        slurm_step("n1", count=1, tasks="1", step="4294967290", SLURM_PTY_PORT="34889"),  # salloc
        slurm_step("n1", count=1, tasks="8", SLURM_PTY_PORT="34889"),  # srun -n8 --pty bash
        open_mpi_5(0, 1),
        {**SLURM_JOB, **slurm_step("n[2-4]", count=3, tasks="1(x3)"), **open_mpi_4(0, 1)},  # in mpirun's step
        {"WORLD_SIZE": "8", "MASTER_ADDR": "n1"},
        {"OMPI_COMM_WORLD_SIZE": "", "PMI_SIZE": "x"},
        {"TF_CONFIG": "{}"},
        tf_job("chief", 0, chief=1),
        {**TRAIN_JOB, "PET_NNODES": "1", "PET_NODE_RANK": "0", "JOB_COMPLETION_INDEX": "0"},
        INDEXED_JOB,
        {**JOBSET, "HOSTNAME": "mnist-workers-0-0", "JOB_COMPLETION_INDEX": "0"},
    ],
)
def test_nothing_stops_who_trains_on_one_host(environ: Environ) -> None:
    assert find_hosts(SILENT, environ) is None


# mpirun starts its daemons by srun: their step, on other hosts, is not that of the ranks.
DAEMONS = {**SLURM_JOB, **slurm_step("n[2-4]", 0, count=3, tasks="1(x3)")}
OF_JOBSET = {**JOBSET, "MASTER_ADDR": "mnist-workers-0-0.mnist"}


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        (asked("n[1-3]", node_rank=2), {}, (2, "n1 n2 n3", "--hosts", None)),
        (asked("10.0.0.[1-2]"), slurm_step(node=1), (1, "10.0.0.1 10.0.0.2", "--hosts", "1234.0")),
        (asked("a:4000,b"), open_mpi_5(1), (1, "a:4000 b", "--hosts", "prterun-n1-8525@1")),
        (
            asked(num_hosts=2, node_rank=1),
            {"MASTER_ADDR": "n1", "MASTER_PORT": "3000"},
            (1, "n1:3000 ?", "--num-hosts", None),
        ),
        (asked(num_hosts=2), OF_JOBSET, (1, "mnist-workers-0-0.mnist ?", "--num-hosts", "mnist")),
        (asked("sweep-[0-3]"), INDEXED_JOB, (3, "sweep-0 sweep-1 sweep-2 sweep-3", "--hosts", None)),
        (asked(node_rank=1), slurm_step(node=1), (1, "n1 n2", "Slurm step 1234.0", "1234.0")),
        (SILENT, {**torchrun(1), **slurm_step(node=1)}, (1, "n1 n2", "Slurm step 1234.0", "1234.0")),
        (
            SILENT,
            {**DAEMONS, **open_mpi_4(1, 4), "MASTER_ADDR": "n1"},
            (1, "n1 ? ? ?", "Open MPI", "3512795137"),
        ),
        # In a Slurm job the ranks are on its nodes in order, wherever mpirun itself was started.
        (SILENT, {**SLURM_JOB, **open_mpi_5(1, 3)}, (1, "n1 n2 n3", "Open MPI", "prterun-n1-8525@1")),
        (
            SILENT,
            {**SLURM_JOB, **intel_mpi(1), "SLURMD_NODENAME": "n2"},
            (1, "n1 n2", "MPI (PMI_SIZE)", None),
        ),
        # Slurm's own PMI counts tasks, as the step does.
        (
            SILENT,
            {**slurm_step(node=1), "PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "11"},
            (1, "n1 n2", "Slurm step 1234.0", "1234.0"),
        ),
    ],
)
def test_sources_complete_one_another_and_the_first_names_the_hosts(
    options: HostOptions, environ: Environ, expected: Shown
) -> None:
    assert shown(find_hosts(options, environ)) == expected


@pytest.mark.parametrize(
    ("options", "environ", "both"),
    [
        (asked("n1,n2,n3"), slurm_step(), ("--hosts has 3 hosts", "Slurm step 1234.0 has 2")),
        (asked("n2,n1"), slurm_step(), ("rank 0 is n2 by --hosts", "n1 by Slurm step 1234.0")),
        (asked(node_rank=0), slurm_step(node=1), ("rank 0 by --node-rank", "rank 1 by Slurm step 1234.0")),
        (asked("n1,n2", num_hosts=3), {}, ("--hosts lists 2 hosts", "--num-hosts is 3")),
        (
            SILENT,
            {
                **torchrun(0),
                "MASTER_ADDR": "n1.other",
                **tf_config({"worker": ["n1.site:3000", "b"]}, "worker"),
            },
            ("n1.site:3000 by TF_CONFIG", "n1.other:29500 by WORLD_SIZE"),
        ),
    ],
)
def test_sources_that_contradict_one_another_are_both_named(
    options: HostOptions, environ: Environ, both: tuple[str, str]
) -> None:
    with pytest.raises(UsageError) as refused:
        find_hosts(options, environ)
    assert all(part in refused.value.what for part in both), refused.value.what
    assert refused.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("options", "environ", "what", "remedy"),
    [
        (SILENT, slurm_step(tasks="4(x2)"), "4 tasks on one host", "srun --ntasks-per-node=1"),
        (SILENT, open_mpi_5(0, 4, local=2), "2 tasks on one host", "mpirun --map-by ppr:1:node"),
        (SILENT, intel_mpi(0, 4, local=4), "4 tasks on one host", "mpiexec -ppn 1"),
        (SILENT, torchrun(5, 8, local=4), "4 tasks on one host", "torchrun --nproc-per-node 1"),
        (SILENT, {"RANK": "3", "WORLD_SIZE": "8", "NODE_RANK": "0"}, "2 tasks on one host", "torchrun"),
        (SILENT, ray_train(0, ("10.0.0.1:4000", "10.0.0.1:4001")), "2 tasks on one host", "num_workers"),
        (SILENT, intel_mpi(1), "the host of rank 0 is not given", "--hosts LIST"),
        (
            SILENT,
            {**SLURM_JOB, **open_mpi_5(2, 3), "PMIX_HOSTNAME": "n4"},
            "the host of rank 0",
            "--hosts",
        ),
        (SILENT, torchrun(2, 2), "rank 2 is outside the 2 hosts", "0 to 1"),
        (SILENT, {**slurm_step(), "SLURM_NODEID": ""}, "the rank of this host is not given", "--node-rank N"),
        (SILENT, slurm_step("n[1-3]"), "has 2 hosts, but lists 3: n[1-3]", "--hosts LIST"),
        (SILENT, JOBSET, "this is pod 1 of the indexed Job mnist", "--num-hosts N"),
        (asked(num_hosts=4), INDEXED_JOB, "the host of rank 0 is not given", "--hosts LIST"),
        (asked(num_hosts=2), {}, "the rank of this host is not given", "--node-rank N"),
        (asked(node_rank=1), {}, "--node-rank needs the number of hosts", "--num-hosts N"),
        (SILENT, tf_job("worker", 0, worker=2, ps=1), "TF_CONFIG has ps tasks", "without ps"),
        (SILENT, tf_job("evaluator", 0), "this is the evaluator", "--eval --checkpoints DIR"),
        (SILENT, tf_job("worker", 2), "task '2' of 'worker'", "correct its task"),
        # A dynamic cluster, which shows each task only some others.
        (SILENT, {"TF_CONFIG": '{"cluster": {"worker": {"1": "b:1"}}}'}, "got `object`", "unset TF_CONFIG"),
        (SILENT, {"TF_CONFIG": "{'cluster'"}, "TF_CONFIG cannot be read", "unset TF_CONFIG"),
    ],
)
def test_what_is_not_understood_is_refused_with_a_remedy(
    options: HostOptions, environ: Environ, what: str, remedy: str
) -> None:
    with pytest.raises(UsageError) as refused:
        find_hosts(options, environ)
    assert what in refused.value.what
    assert remedy in refused.value.hint
    assert "\n" not in refused.value.what + refused.value.hint


def test_one_host_that_is_asked_for_goes_before_the_environment() -> None:
    environ = slurm_step(tasks="4(x2)")
    assert find_hosts(asked(num_hosts=1), environ) is None
    assert find_hosts(asked("n1", num_hosts=1), environ) is None


_hosts = st.lists(st.integers(0, 30), min_size=2, max_size=6, unique=True).map(
    lambda numbers: [f"n{number}" for number in numbers]
)


@given(_hosts, st.data())
def test_sources_that_agree_give_the_same_hosts_in_any_number(hosts: list[str], data: st.DataObject) -> None:
    """All sources give the same; whichever are there, the hosts that all name are those of the first."""
    rank, size = data.draw(st.integers(0, len(hosts) - 1)), len(hosts)
    sources: list[Environ] = [
        tf_config({"worker": [f"{name}:3000" for name in hosts]}, "worker", rank),
        slurm_step(",".join(hosts), rank, count=size, tasks=f"1(x{size})"),
        {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": hosts[0]},
    ]
    some = data.draw(st.lists(st.sampled_from(range(3)), min_size=1, unique=True).map(sorted))
    found = find_hosts(SILENT, {name: text for one in some for name, text in sources[one].items()})
    assert isinstance(found, Allocation)
    assert (found.rank, found.size, found.leader.name) == (rank, size, hosts[0])
    assert found.source == ("TF_CONFIG", "Slurm step 1234.0", "WORLD_SIZE")[some[0]]
    if some[0] != 2:
        assert [one.name for one in found.hosts] == hosts
    other = data.draw(st.integers(0, size - 1).filter(lambda number: number != rank))
    with pytest.raises(UsageError, match=f"rank {other} by --node-rank, and rank {rank} by"):
        find_hosts(asked(node_rank=other), sources[some[0]])


_VARIABLES = sorted(
    {
        *slurm_step(),
        *open_mpi_4(),
        *open_mpi_5(),
        *intel_mpi(),
        *torchrun(),
        *TRAIN_JOB,
        *JOBSET,
        "TF_CONFIG",
        "NODE_RANK",
    }
)


_texts = st.one_of(
    st.integers(-1, 4).map(str),
    st.sampled_from(["n1", "n[1-2]", "n[1-", "1(x2)", "4(x2),1", "9" * 5000, "none", "a\nb", "-0.-1;"]),
    st.sampled_from(
        ['{"cluster": {"worker": ["a:3000", 1]}}', '{"task": []}', "[1]", "{}", '{"cluster": ""}']
    ),
    st.text(max_size=8),
)


_started = st.sampled_from(
    [{}, slurm_step(), open_mpi_4(), open_mpi_5(), intel_mpi(), torchrun(), TRAIN_JOB, JOBSET, tf_job()]
)


@given(_started, st.dictionaries(st.sampled_from(_VARIABLES), _texts, max_size=4))
def test_any_variables_are_hosts_or_none_or_refused_in_two_lines(environ: Environ, other: Environ) -> None:
    lines: tuple[str, ...] = ()
    found = None
    try:
        found = find_hosts(SILENT, {**environ, **other})
    except UsageError as refused:
        lines = (refused.what, refused.hint)
    assert all(line.strip() and "\n" not in line for line in lines)
    if found is not None:
        assert isinstance(found, Allocation)
        assert 0 <= found.rank < found.size > 1
        assert str(found.leader).isprintable()


@pytest.mark.parametrize("environ", [slurm_step("n[1-3]", count=3, tasks="1(x3)"), open_mpi_5(0, 3)])
def test_a_process_without_a_rank_starts_the_hosts(environ: Environ) -> None:
    hosts = read_hosts("--hosts", "n[1-3]")
    assert find_hosts(asked("n[1-3]"), {}) == hosts
    assert find_hosts(HostOptions(hostfile=hosts), {}) == hosts
    assert isinstance(find_hosts(asked("n[1-3]"), environ), Allocation)
    assert isinstance(find_hosts(HostOptions(hostfile=hosts, node_rank=0), {}), Allocation)
    assert find_hosts(HostOptions(hosts=hosts[:1]), {}) == hosts[:1]
    assert find_hosts(asked("localhost"), {}) is None
    with pytest.raises(UsageError, match="--hosts lists 3 hosts, but --num-hosts is 4"):
        find_hosts(asked("n[1-3]", num_hosts=4), {})
