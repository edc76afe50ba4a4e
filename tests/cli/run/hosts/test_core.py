"""`gputopo run` as one of several hosts, as far as it goes without training."""

import pytest

from gputopo.launch import Job, runnable
from gputopo.launch.hosts import plan_hosts
from gputopo.planner import Request
from gputopo.values.option import Given
from gputopo.values.run.drill import read_drills
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.spec import Lifecycle
from tests.cli.conftest import Call
from tests.kit.ports import free_port
from tests.launch.hosts.environs import Environ, slurm_step
from tests.launch.hosts.test_planning import brought, by_rails


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


def test_a_training_of_several_hosts_does_not_become_one_of_this_host_alone(
    call: Call, without_gpu: None, started_by: StartedBy
) -> None:
    started_by(slurm_step(node=1))
    for asked in (
        ["--dry-run", "--format", "env"],
        ["--restart", "1"],
        ["--single-gpu-images-per-sec", "100,100"],
        ["--from", "7gforce"],
    ):
        done = call("run", "--model", "alexnet", *asked)
        assert (done.code, done.out) == (2, "")
        what, hint = done.err.splitlines()
        assert asked[-2] in what
        assert "--num-hosts 1" in hint
    assert "Slurm step 1234.0" in call("run", "--model", "alexnet", "--hosts", "n[1-7]").err, (
        "a contradiction"
    )


def test_rank_0_names_the_hosts_that_do_not_come(call: Call, without_gpu: None) -> None:
    hosts = f"localhost:{free_port()},n2,n3"
    done = call("run", "--model", "trivial", "--hosts", hosts, "--node-rank", "0", "--join-timeout", "0.1")
    assert (done.code, done.out) == (3, "")
    assert "2 of 3 hosts did not join within 0.1 s: n2 (rank 1) and n3 (rank 2)" in done.err


def test_a_host_whose_rank_0_does_not_come_names_it(call: Call, without_gpu: None) -> None:
    port = free_port()
    hosts = f"localhost:{port},localhost"
    done = call("run", "--model", "trivial", "--hosts", hosts, "--node-rank", "1", "--join-timeout", "0.1")
    assert (done.code, done.out) == (3, "")
    assert f"rank 0 at localhost port {port} did not answer within 0.1 s: connection refused" in done.err
    assert "start rank 0 with the same port" in done.err


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        ("--worker_hosts=a:5000,b:5000 --job_name=worker", "--autotune is for one host", "--num-hosts 1"),
        ("--hostfile /nowhere", "--hostfile '/nowhere' cannot be read", "one host per line"),
    ],
)
def test_options_that_name_hosts_are_read_and_refused(
    call: Call, without_gpu: None, options: str, what: str, hint: str
) -> None:
    done = call("run", "--model", "alexnet", "--autotune", "2", *options.split())
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 2)
    assert what in done.err.splitlines()[0]
    assert hint in done.err.splitlines()[1]


@pytest.mark.parametrize("words", [("run", "--num-hosts", "1", "--", "true"), ("inspect",)])
def test_other_commands_run_on_each_host_and_so_do_programs_that_are_to(
    call: Call, without_gpu: None, started_by: StartedBy, words: tuple[str, ...]
) -> None:
    alone = call(*words)
    started_by(slurm_step())
    done = call(*words)
    assert (done.code, "Slurm" in done.err) == (alone.code, False)


def test_a_program_on_several_hosts_does_not_become_one_of_this_host_alone(
    call: Call, without_gpu: None, started_by: StartedBy
) -> None:
    started_by(slurm_step(node=1))
    for asked in (["--dry-run"], ["--num-gpus", "auto"], ["--num-gpus", "auto:0.4"]):
        done = call("run", *asked, "--", "true")
        assert (done.code, done.out) == (2, "")
        assert f"{asked[0]} " in done.err.splitlines()[0]
        assert "is for one host" in done.err
        assert "--num-hosts 1" in done.err
    done = call("run", "--", "no-such-program")
    assert (done.code, "there is no program no-such-program" in done.err) == (2, True)


def test_an_option_of_several_hosts_is_not_ignored_in_silence_on_one(call: Call, without_gpu: None) -> None:
    done = call("run", "--model", "trivial", "--dry-run", "--join-timeout", "5", "--num-hosts", "1")
    assert done.code == 0
    assert "--join-timeout has no effect: this run has one host" in done.err


@pytest.mark.parametrize(
    ("strategy", "all_reduce", "predicts"),
    [("multi_worker_mirrored", "nccl", True), ("mwms:nccl", "nccl", True), ("mwms:ring", None, False)],
)
def test_the_strategy_of_several_hosts_is_predicted_as_rings_of_nccl(
    strategy: str, all_reduce: str | None, predicts: bool
) -> None:
    asked = Job("vgg16", Given(), Given({"strategy": strategy}, {"strategy": strategy})).request
    assert (asked.all_reduce, asked.predicts, asked.variable_update) == (all_reduce, predicts, "replicated")


def test_nccl_that_was_predicted_gives_way_to_an_option_that_it_has_not(
    without_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = [brought("n1", by_rails()), brought("n2", by_rails())]
    asked = Request(model="vgg16", single_gpu_images_per_sec=(1000.0,))
    target = plan_hosts(hosts, asked).target
    saved = {"lifecycle": Lifecycle(checkpoints="c")}
    job = Job("vgg16", Given(), Given(saved, {"checkpoints": "c"}))
    _, spec = job.on_hosts(target, lambda one: runnable(job, one, OutputOptions()))
    assert spec.strategy == "multi_worker_mirrored:nccl"
    drill = read_drills("--drill", ["slow-gpu=1:0.9"])
    job = Job("vgg16", Given(), Given({"drills": drill}, {"drill": "slow-gpu=1:0.9"}))
    other, spec = job.on_hosts(target, job.spec_of)
    assert (spec.strategy, spec.all_reduce) == (None, "hierarchical")
    assert other.plan.choice == other.plan.candidates[0]
    assert "without NCCL between hosts: --drill cannot be combined with" in capsys.readouterr().err
