"""`gputopo run` as one of several hosts: it trains on one, and starts nothing where a starter means more."""

import shlex

import pytest

from tests.cli.conftest import Call
from tests.launch.hosts.environs import Environ, open_mpi_5, ray_train, slurm_step, torchrun


@pytest.fixture
def started_by(monkeypatch: pytest.MonkeyPatch) -> "StartedBy":
    return StartedBy(monkeypatch)


class StartedBy:
    """Gives this process the variables of a starter."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, environ: Environ) -> None:
        for name, text in environ.items():
            if name != "CUDA_VISIBLE_DEVICES":
                self._monkeypatch.setenv(name, text)


@pytest.mark.parametrize("dry", ["", "--dry-run", "--dry-run --json", "--dry-run --format sbatch"])
@pytest.mark.parametrize(
    ("environ", "source"),
    [
        (slurm_step(node=1), "Slurm step 1234.0 has 2 hosts"),
        (open_mpi_5(0, 3), "Open MPI has 3 hosts"),
        (ray_train(), "TF_CONFIG has 2 hosts"),
        (torchrun(), "WORLD_SIZE has 2 hosts"),
    ],
)
def test_a_training_over_several_hosts_is_refused_before_anything_starts(
    call: Call, without_gpu: None, started_by: StartedBy, environ: Environ, source: str, dry: str
) -> None:
    started_by(environ)
    done = call("run", "--model", "alexnet", *shlex.split(dry))
    assert (done.code, done.out) == (2, "")
    what, hint = done.err.splitlines()
    assert f"{source}, and gputopo run trains on one" in what
    assert "start it on one host, or add --num-hosts 1" in hint


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        ("--hosts n[1-2] --node-rank 0", "--hosts has 2 hosts", "--num-hosts 1"),
        ("--worker_hosts=a:5000,b:5000 --job_name=worker --task_index=1", "--hosts has 2 hosts", "one host"),
        ("--hosts n[1-3]", "--hosts has 3 hosts, Slurm step 1234.0 has 2", "unset SLURM_STEP_ID"),
        ("--hosts n[2-1]", "--hosts has [2-1], which counts down", "[1-2]"),
        ("--hostfile /nowhere", "--hostfile '/nowhere' cannot be read", "one host a line"),
    ],
)
def test_options_that_name_hosts_are_read_and_refused(
    call: Call, without_gpu: None, started_by: StartedBy, options: str, what: str, hint: str
) -> None:
    started_by(slurm_step("n[1-2]") if "has 2" in what and "Slurm" in what else {})
    done = call("run", "--model", "alexnet", "--dry-run", *options.split())
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 2)
    assert what in done.err.splitlines()[0]
    assert hint in done.err.splitlines()[1]


def test_one_host_of_several_trains_alone_where_it_is_asked_to(
    call: Call, without_gpu: None, started_by: StartedBy
) -> None:
    started_by(slurm_step(tasks="4(x2)"))
    assert call("run", "--model", "alexnet", "--dry-run").code == 2
    assert call("run", "--model", "alexnet", "--dry-run", "--num-hosts", "1").code == 0


@pytest.mark.parametrize("words", [("run", "--", "true"), ("plan", "--model", "alexnet"), ("inspect",)])
def test_programs_and_other_commands_run_on_each_host(
    call: Call, without_gpu: None, started_by: StartedBy, words: tuple[str, ...]
) -> None:
    alone = call(*words)
    started_by(slurm_step())
    assert call(*words).code == alone.code
    assert "Slurm" not in call(*words).err


def test_hosts_are_for_the_core_and_not_for_a_program_or_a_plan(call: Call, without_gpu: None) -> None:
    done = call("run", "--hosts", "n1,n2", "--", "true")
    assert done.code == 2
    assert "--hosts is for the built-in core" in done.err
    done = call("plan", "--model", "alexnet", "--worker_hosts=a,b")
    assert done.code == 2
    assert "it is for run" in done.err
