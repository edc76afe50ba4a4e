"""`gputopo run` from the command line, with a worker that only pretends; see tests/launch for the rest."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gputopo import schema
from gputopo.cli import run_options, training_run
from gputopo.cli.dry_run import DryRun
from gputopo.events import Anomaly, RunStarted, Sample, read_events
from gputopo.launch import runs
from gputopo.launch.spec import RunSpec
from gputopo.repeats import Repeats
from gputopo.result import Result
from tests.cli.conftest import Call
from tests.kit_workers import misbehave

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "home"


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a pretending worker in the place of the core."""

    def behaves(behaviour: str) -> None:
        def command(spec: Path, events_fd: int) -> Sequence[str]:
            return (sys.executable, "-I", misbehave.__file__, behaviour, str(spec), str(events_fd))

        monkeypatch.setattr(training_run, "worker_command", command)

    return behaves


def test_a_run_without_a_gpu_says_so_first_and_keeps_its_result(
    call: Call, without_gpu: None, worker: Callable[[str], None], home: Path
) -> None:
    worker("works")
    done = call("run", "--model", "alexnet", "--prefer-pix")
    assert done.code == 0
    assert done.err.splitlines()[0] == "No NVIDIA device: training on 2 logical CPU devices."
    assert "CPU" in done.out.splitlines()[0]
    assert "No NVIDIA device: training on 2 logical CPU devices." in done.out
    (folder,) = (home / "runs").iterdir()
    result = schema.decode((folder / "result.json").read_bytes(), Result, origin="result")
    assert (result.status, result.steps, result.backend) == ("complete", 3, "cpu")
    assert {path.name for path in folder.iterdir()} == {
        "spec.json", "plan.json", "events.jsonl", "worker.log", "result.json"
    }  # fmt: skip


def test_json_on_stdout_is_the_result_and_nothing_else(
    call: Call, without_gpu: None, worker: Callable[[str], None], tmp_path: Path
) -> None:
    worker("works")
    done = call("run", "--model", "alexnet", "--json", "--output", tmp_path / "out")
    printed = schema.decode(done.out, Result, origin="stdout")
    kept = schema.decode((tmp_path / "out/result.json").read_bytes(), Result, origin="file")
    assert printed == kept
    assert printed.says == ("No NVIDIA device: training on 2 logical CPU devices.",)


def test_a_rehearsal_is_labelled_in_every_output(
    call: Call, worker: Callable[[str], None], tmp_path: Path
) -> None:
    worker("works")
    options = ("run", "--model", "alexnet", "--from", "7gforce", "--num-gpus", "2", "--prefer-pix")
    says = "Rehearsal of 7gforce (GPUs 0, 1) on 2 CPU devices: speeds are this CPU's."
    table = call(*options)
    assert table.err.splitlines()[0] == says
    assert "rehearsal of 7gforce" in " ".join(table.out.partition(says)[0].split())  # the title, folded
    assert says in table.out
    assert call(*options, "--tf-cnn-log").out.splitlines()[0] == says
    assert json.loads(call(*options, "--json").out)["rehearsal_of"] == "7gforce"
    assert says in call(*options, "--dry-run").out
    call(*options, "--output", tmp_path / "out")
    assert json.loads((tmp_path / "out/spec.json").read_text())["says"] == [says]
    assert '"rehearsal_of":"7gforce"' in (tmp_path / "out/events.jsonl").read_text().replace(": ", ":")


def test_the_log_lines_of_tf_cnn_benchmarks_stand_in_for_the_table(
    call: Call, without_gpu: None, worker: Callable[[str], None]
) -> None:
    worker("works")
    done = call("run", "--model", "alexnet", "--tf-cnn-log")
    assert done.code == 0
    assert sum(line.startswith("total images/sec: ") for line in done.out.splitlines()) == 1
    assert "% of" not in done.out


def test_on_gpus_the_clocks_are_sampled(
    call: Call,
    on_scenario: Callable[[str], None],
    worker: Callable[[str], None],
    tmp_path: Path,
) -> None:
    on_scenario("7gforce")
    worker("works")
    done = call("run", "--model", "alexnet", "--num-gpus", "2", "--output", tmp_path / "out")
    assert done.code == 0
    assert done.err.splitlines()[0] == "Training on 2 GPUs: 0, 1."
    with (tmp_path / "out/events.jsonl").open("rb") as lines:
        events = list(read_events(lines, origin="events"))
    sample = next(event for event in events if isinstance(event, Sample))
    assert [gpu.gpu for gpu in sample.gpus] == [0, 1]
    assert sample.gpus[0].memory_mhz is not None
    started = events[0]
    assert isinstance(started, RunStarted)
    assert [device.device for device in started.devices] == ["/GPU:0", "/GPU:1"]


def test_no_uuid_is_written_to_the_runs_folder(
    call: Call, on_scenario: Callable[[str], None], worker: Callable[[str], None], tmp_path: Path
) -> None:
    on_scenario("7gforce")
    worker("works")
    call("run", "--model", "alexnet", "--num-gpus", "2", "--output", tmp_path / "out")
    texts = [path.read_text() for path in (tmp_path / "out").iterdir()]
    assert not [text for text in texts if "GPU-00000007" in text]


def test_an_anomaly_is_named_and_fails_the_run_only_where_that_was_asked_for(
    call: Call, without_gpu: None, worker: Callable[[str], None], tmp_path: Path
) -> None:
    worker("slow_tower")
    plain = call("run", "--model", "alexnet", "--add-work", "1:1", "--output", tmp_path / "a")
    assert plain.code == 0
    assert "tower 1" in plain.out
    assert "Tower 1 makes 1 forward pass more in each step, as asked." in plain.out
    with (tmp_path / "a/events.jsonl").open("rb") as lines:
        assert any(isinstance(event, Anomaly) for event in read_events(lines, origin="events"))
    assert call("run", "--model", "alexnet", "--fail-on", "warning").code == 1
    assert call("run", "--model", "alexnet", "--fail-on", "error").code == 0


@pytest.mark.parametrize(
    ("behaviour", "code", "said"),
    [
        ("tells_out_of_memory", 3, "--batch-size"),
        ("killed", 137, "SIGKILL"),
        ("traceback", 3, "ValueError"),
    ],
)
@pytest.mark.parametrize("printed", ["table", "--json", "--tf-cnn-log"])
def test_a_run_that_fails_tells_why_and_what_was_measured(
    call: Call,
    without_gpu: None,
    worker: Callable[[str], None],
    behaviour: str,
    code: int,
    said: str,
    printed: str,
) -> None:
    worker(behaviour)
    done = call("run", "--model", "alexnet", *(() if printed == "table" else (printed,)))
    assert done.code == code
    assert said in done.out + done.err
    if printed == "--json":
        result = schema.decode(done.out, Result, origin="stdout")
        assert (result.status, result.exit_code, result.steps) == ("failed", code, 1)
    if printed == "--tf-cnn-log":
        assert "total images/sec" not in done.out


def test_a_result_that_cannot_be_written_is_still_shown(
    call: Call, without_gpu: None, worker: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    def full(folder: runs.RunFolder, result: Result) -> None:
        raise schema._unwritable(folder.result, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    worker("works")
    monkeypatch.setattr(runs, "write_result", full)
    done = call("run", "--model", "alexnet")
    assert done.code == 3
    assert "No space left on device" in done.out
    assert "3 counted" in done.out
    assert not list(home.glob("runs/*/result.json"))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ((), "nothing to run"),
        (("--model", "alexnt"), "alexnt"),
        (("--model", "alexnet", "--batch-size", "0"), "--batch-size cannot be 0"),
        (("--model", "alexnet", "--batch-size", "-4"), "--batch-size cannot be -4"),
        (("--model", "alexnet", "--num-batches", "0"), "--num-batches cannot be 0"),
        (("--model", "alexnet", "--num-warmup-batches", "-1"), "--num-warmup-batches cannot be -1"),
        (("--model", "alexnet", "--num-gpus", "0"), "--num-gpus cannot be 0"),
        (("--model", "alexnet", "--num-gpus", "1000"), "--num-gpus cannot be 1000"),
        (("--model", "alexnet", "--gpus", "0"), "--gpus names GPUs, and there is none"),
        (("--model", "alexnet", "--ps", "gpu:7"), "--ps gpu:7"),
        (("--model", "alexnet", "--data-format", "NHCW"), "--data-format"),
        (("--model", "alexnet", "--grad-reduce", "median"), "--grad-reduce"),
        (("--model", "alexnet", "--learning-rate", "nan"), "--learning-rate"),
        (("--model", "alexnet", "--seed", "-1"), "--seed"),
        (("--model", "alexnet", "--add-work", "1"), "--add-work"),
        (("--model", "alexnet", "--add-work", "5:1"), "tower 5"),
        (("--model", "alexnet", "--add-work", "1:1", "--add-work", "1:2"), "twice"),
        (("--model", "alexnet", "--fail-on", "info"), "--fail-on"),
        (("--model", "alexnet", "--json", "--tf-cnn-log"), "--tf-cnn-log"),
        (("--model", "alexnet", "--output", "/proc/nowhere"), "cannot make the run folder"),
        (("--model", "alexnet", "--output", "/dev/null"), "is not a folder"),
        (("--batch-size", "4", "--", "true"), "--batch-size is for the built-in core"),
        (("--from", "7gforce", "--", "true"), "--from plans for another machine"),
        (("--", "no-such-program-here"), "there is no program"),
        (("--from", "7gforce", "--model", "alexnet", "--num-gpus", "8"), "8"),
        (("--from", "7gforce", "--model", "alexnet", "--require-gpu"), "contradict"),
    ],
)
def test_bad_usage_is_two_lines_and_leaves_nothing_behind(
    call: Call, without_gpu: None, home: Path, options: tuple[str, ...], what: str
) -> None:
    done = call("run", *options)
    assert (done.code, done.out) == (2, "")
    assert what in done.err
    assert len(done.err.splitlines()) == 2
    assert not home.exists()


def test_a_folder_that_holds_a_run_is_refused_before_anything_starts(
    call: Call, without_gpu: None, tmp_path: Path
) -> None:
    (tmp_path / "events.jsonl").write_text("")
    done = call("run", "--model", "alexnet", "--output", tmp_path)
    assert (done.code, len(done.err.splitlines())) == (2, 2)
    assert "already holds a run" in done.err


@pytest.mark.parametrize("what", [("--model", "alexnet"), ("--", "true")])
def test_a_broken_driver_is_exit_code_3_with_the_finding(
    call: Call, with_broken_driver: None, home: Path, what: tuple[str, ...]
) -> None:
    done = call("run", *what)
    assert done.code == 3
    assert "no GPU of this machine can be used" in done.err
    assert not home.exists()


@pytest.mark.parametrize("what", [("--model", "alexnet"), ("--", "true")])
def test_a_required_gpu_that_is_absent_is_exit_code_3(
    call: Call, without_gpu: None, home: Path, what: tuple[str, ...]
) -> None:
    assert call("run", "--require-gpu", *what).code == 3
    assert not home.exists()


def test_a_dry_run_shows_plan_environment_and_command_and_starts_nothing(
    call: Call, on_scenario: Callable[[str], None], home: Path
) -> None:
    on_scenario("7gforce")
    options = ("run", "--model", "alexnet", "--num-gpus", "2", "--prefer-pix", "--dry-run")
    table = call(*options)
    assert table.code == 0
    for words in ("GPUs       0,1", "CUDA_VISIBLE_DEVICES=GPU-", "-m gputopo.launch.worker", "\nWhy\n"):
        assert words in table.out
    dry = schema.decode(call(*options, "--json").out, DryRun, origin="stdout")
    assert dry.plan.choice.gpus == (0, 1)
    assert dry.spec is not None
    assert dry.spec.ps_device == "/GPU:0"
    assert dry.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "gputopo.launch.worker" in dry.command
    assert not home.exists()


def test_a_dry_run_of_a_program_shows_its_command(call: Call, on_scenario: Callable[[str], None]) -> None:
    on_scenario("7gforce")
    options = ("run", "--gpus", "3", "--dry-run", "--json", "--", "sh", "-c", "exit 1")
    dry = schema.decode(call(*options).out, DryRun, origin="stdout")
    assert (dry.command, dry.spec) == (("sh", "-c", "exit 1"), None)
    assert dry.plan.choice.gpus == (3,)


def kit(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.kit.command", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_a_program_of_the_user_sees_the_planned_gpus_and_passes_its_code_through() -> None:
    script = 'echo "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES"; exit 7'
    done = kit("7gforce", "--", "run", "--num-gpus", "2", "--", "sh", "-c", script)
    assert done.returncode == 7
    order, uuids = done.stdout.split()
    assert order == "PCI_BUS_ID"
    assert [uuid.startswith("GPU-") for uuid in uuids.split(",")] == [True, True]
    assert done.stderr == "gputopo: sh runs on GPU 0, 1.\n"


def test_a_program_on_a_machine_without_a_gpu_runs_without_one_and_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    environment = {**os.environ, "GPUTOPO_ROOT": str(tmp_path)}
    command = [
        sys.executable,
        "-m",
        "gputopo",
        "run",
        "--",
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES; kill -9 $$",
    ]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (137, "-1\n")
    assert done.stderr == "gputopo: No NVIDIA device: sh runs without one.\n"


INTERRUPTED = """
import sys
from pathlib import Path
from gputopo.cli import run_command, training_run
from tests.kit_workers import misbehave
training_run.worker_command = lambda spec, fd: (
    sys.executable, "-I", misbehave.__file__, "hangs", str(spec), str(fd))
sys.exit(run_command(["run", "--model", "alexnet", "--json", "--output", sys.argv[1]]))
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_reports_what_was_measured(
    tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    (tmp_path / "root/sys/bus/pci/devices").mkdir(parents=True)
    environment = {**os.environ, "GPUTOPO_ROOT": str(tmp_path / "root")}
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "out")],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stderr is not None
        while not command.stderr.readline().startswith("step 1:"):
            assert command.poll() is None
        command.send_signal(signum)
        out, _ = command.communicate(timeout=60)
    assert command.returncode == code
    result = schema.decode(out, Result, origin="stdout")
    assert (result.status, result.steps, result.exit_code) == ("interrupted", 1, code)
    assert schema.decode((tmp_path / "out/result.json").read_bytes(), Result, origin="file") == result


def test_the_parent_never_imports_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys; from gputopo.cli import run_command, training_run; "
        "code = run_command(['run', '--model', 'alexnet', '--from', '7gforce', '--dry-run']); "
        "sys.exit(code or 'tensorflow' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=120).returncode
        == 0
    )


@pytest.mark.tensorflow
def test_the_core_trains_on_cpu_devices_from_the_command_to_the_result(tmp_path: Path) -> None:
    (tmp_path / "root/sys/bus/pci/devices").mkdir(parents=True)
    environment = {**os.environ, "GPUTOPO_ROOT": str(tmp_path / "root")}
    options = [
        "--model",
        "trivial",
        "--batch-size",
        "2",
        "--num-batches",
        "3",
        "--output",
        str(tmp_path / "out"),
    ]
    command = [sys.executable, "-m", "gputopo", "run", *options, "--json"]
    # From a folder that has packages of the same names as ours.
    elsewhere = tmp_path / "elsewhere"
    for name in ("launch", "probes", "tensorflow"):
        (elsewhere / name).mkdir(parents=True)
        (elsewhere / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    done = subprocess.run(
        command, env=environment, cwd=elsewhere, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    result = schema.decode(done.stdout, Result, origin="stdout")
    assert (result.status, result.steps, result.images) == ("complete", 3, 12)
    assert set(result.ops_on) == {"/CPU:0", "/CPU:1"}
    assert set(result.variables_on) == {"/CPU:0"}


def test_repeats_run_one_after_the_other_and_give_mean_and_spread(
    call: Call, without_gpu: None, worker: Callable[[str], None], tmp_path: Path
) -> None:
    worker("works")
    done = call("run", "--model", "alexnet", "--repeats", "3", "--output", tmp_path / "out")
    assert done.code == 0
    assert "over 3 of 3 repeats" in done.out
    assert [line for line in done.err.splitlines() if line.startswith("repeat ")] == [
        "repeat 1 of 3", "repeat 2 of 3", "repeat 3 of 3"
    ]  # fmt: skip
    kept = schema.decode((tmp_path / "out/repeats.json").read_bytes(), Repeats, origin="file")
    assert (kept.status, kept.complete, len(kept.runs)) == ("complete", 3, 3)
    for number in ("1", "2", "3"):
        result = (tmp_path / "out" / number / "result.json").read_bytes()
        assert schema.decode(result, Result, origin="file").status == "complete"


def test_a_repeat_that_fails_is_told_as_failed_and_the_others_go_on(
    call: Call, without_gpu: None, worker: Callable[[str], None]
) -> None:
    worker("killed")
    done = call("run", "--model", "alexnet", "--repeats", "2", "--json")
    repeats = schema.decode(done.out, Repeats, origin="stdout")
    assert done.code == repeats.exit_code == 137
    assert (repeats.complete, repeats.images_per_sec) == (0, None)
    assert [run.status for run in repeats.runs] == ["failed", "failed"]


def test_a_trace_goes_into_the_folder_of_its_run(
    call: Call, without_gpu: None, worker: Callable[[str], None], tmp_path: Path
) -> None:
    worker("works")
    call("run", "--model", "alexnet", "--trace", "2-3", "--output", tmp_path / "out")
    spec = schema.decode((tmp_path / "out/spec.json").read_bytes(), RunSpec, origin="file")
    assert spec.lifecycle.trace == str(tmp_path / "out/trace")
    assert spec.lifecycle.trace_steps == (2, 3)


def test_what_was_asked_and_what_ran_are_both_in_the_result(
    call: Call, without_gpu: None, worker: Callable[[str], None]
) -> None:
    worker("works")
    options = ("--variable_update=replicated", "--all_reduce_spec=xring#2", "--use_fp16", "--batch_size=4")
    result = schema.decode(call("run", "--model", "alexnet", *options, "--json").out, Result, origin="out")
    assert result.asked == {
        "variable_update": "replicated",
        "all_reduce": "xring#2",
        "precision": "fp16",
        "batch_size": 4,
    }
    assert (result.ran["all_reduce"], result.ran["precision"], result.ran["loss_scale"]) == (
        "ring#2", "fp16", 128
    )  # fmt: skip
    assert (result.batch_size, result.global_batch_size) == (4, 8)


def test_the_driver_is_among_the_versions_of_a_run_on_gpus(
    call: Call, on_scenario: Callable[[str], None], worker: Callable[[str], None]
) -> None:
    on_scenario("7gforce")
    worker("works")
    done = call("run", "--model", "alexnet", "--num-gpus", "2", "--json")
    versions = schema.decode(done.out, Result, origin="stdout").versions
    assert {"driver", "cuda_driver", "gputopo", "python"} <= set(versions)


def test_the_hierarchical_reduction_gets_its_groups_from_the_machine(call: Call) -> None:
    options = (
        "--from",
        "7gforce",
        "--gpus",
        "0,1,4,5",
        "--all-reduce",
        "hierarchical",
        "--dry-run",
        "--json",
    )
    dry = schema.decode(call("run", "--model", "alexnet", *options).out, DryRun, origin="stdout")
    assert dry.spec is not None
    assert dry.spec.exchange.groups == ((0, 1), (2, 3))
    assert dry.plan.choice.all_reduce == dry.spec.all_reduce == "hierarchical"


def test_variables_spread_over_the_gpus_are_planned_and_run(call: Call) -> None:
    options = ("--from", "7gforce", "--num-gpus", "2", "--ps", "gpu:spread", "--dry-run", "--json")
    dry = schema.decode(call("run", "--model", "alexnet", *options).out, DryRun, origin="stdout")
    assert dry.spec is not None
    assert (dry.plan.choice.ps_device, dry.spec.ps_device, dry.spec.exchange.ps_spread) == (
        "gpu:spread", None, True
    )  # fmt: skip
    assert [device.hop_to_variables for device in dry.spec.devices] == ["spread", "spread"]


@pytest.mark.parametrize("mode", ["distributed_replicated", "collective_all_reduce", "horovod"])
def test_modes_of_several_hosts_are_refused_with_what_to_use(call: Call, mode: str) -> None:
    done = call("run", "--model", "alexnet", "--variable_update", mode)
    assert done.code == 2
    assert mode in done.err.splitlines()[0]
    assert "--variable-update replicated" in done.err.splitlines()[1]


def test_the_help_is_grouped_by_theme(call: Call) -> None:
    text = call("run", "--help").out
    headings = [line.removesuffix(":") for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings == ["Arguments", "Options", *run_options.THEMES]


def test_a_folder_without_records_is_refused_before_tensorflow_starts(
    call: Call, without_gpu: None, tmp_path: Path
) -> None:
    done = call("run", "--model", "resnet20", "--data-dir", tmp_path)
    assert done.code == 2
    assert str(tmp_path) in done.err
    assert len(done.err.splitlines()) == 2


@pytest.mark.parametrize("option", ["--checkpoints", "--export"])
def test_repeats_that_would_write_to_one_folder_are_refused(
    call: Call, without_gpu: None, worker: Callable[[str], None], tmp_path: Path, option: str
) -> None:
    worker("works")
    done = call("run", "--model", "alexnet", "--repeats", "2", option, tmp_path / "kept")
    assert done.code == 2
    assert option in done.err
    assert "--repeats" in done.err.splitlines()[1]
