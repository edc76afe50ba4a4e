"""The user's own program. Each test has a launcher in its own process, as a shell would."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.launch.user_program import check_program
from gputopo.values.errors import UsageError
from tests.kit import commands

LAUNCHER = (
    "import os, sys; from gputopo.launch.user_program import run_to_end; "
    "sys.exit(run_to_end(sys.argv[1:], {**os.environ, 'CUDA_VISIBLE_DEVICES': 'GPU-a'}).exit_code)"
)
# It leads a process group, as batch systems start it.
LEADER = f"import os; os.setpgid(0, 0); {LAUNCHER}"
SAFETY_S = 60  # of tests that hang; nothing waits for it


def finish(*program: str, typed: str = "") -> tuple[int, str, str]:
    done = commands.run("-c", LAUNCHER, *program, given=typed)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("code", [0, 77])
def test_the_exit_code_of_the_program_is_passed_through(code: int) -> None:
    assert finish("sh", "-c", f"exit {code}")[0] == code


def test_a_program_ended_by_a_signal_gives_128_and_its_number() -> None:
    assert finish("sh", "-c", "kill -PIPE $$")[0] == 128 + signal.SIGPIPE


def test_stdin_stdout_stderr_and_exit_code_are_the_programs() -> None:
    assert finish("sh", "-c", "cat; echo err >&2; exit 77", typed="typed\n") == (77, "typed\n", "err\n")


REPORTS = """
import signal, sys
def note(signum, frame):
    print(signal.Signals(signum).name, flush=True)
    sys.exit(9)
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
    signal.signal(signum, note)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGQUIT"])
def test_a_signal_to_the_launcher_reaches_the_program(name: str) -> None:
    with commands.started("-c", LAUNCHER, sys.executable, "-c", REPORTS) as (launcher, printed):
        assert printed.readline() == "ready\n"
        os.kill(launcher.pid, signal.Signals[name])
        assert (printed.read(), launcher.wait(SAFETY_S)) == (f"{name}\n", 9)


def test_the_program_starts_with_no_signal_blocked_or_ignored() -> None:
    look = ["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"]
    plain = subprocess.run(look, capture_output=True, text=True, check=True).stdout
    assert finish(*look)[1] == plain


IGNORES = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
signal.pause()
"""


def test_a_program_ends_with_a_launcher_that_is_killed_after_any_signal_to_the_group() -> None:
    with commands.started("-c", LEADER, sys.executable, "-c", IGNORES) as (launcher, printed):
        program = int(printed.readline())
        os.killpg(launcher.pid, signal.SIGSTOP)
        launcher.kill()
        try:
            assert printed.read() == ""  # nobody holds the pipe any more
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(program, signal.SIGKILL)


COUNTS_TO_THE_END = """
import os, signal
came = []
def note(signum, frame):
    came.append(signal.Signals(signum).name)
    if len(came) == 1:
        print("came", flush=True)
for signum in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signum, note)
signal.signal(signal.SIGUSR2, lambda *_: (print(came, flush=True), os._exit(0)))
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize(
    ("sends", "name"),
    [
        pytest.param([os.killpg], "SIGINT", id="to the group"),
        pytest.param([os.kill, os.killpg], "SIGTERM", id="to both, as timeout does"),
    ],
)
def test_a_signal_reaches_the_program_once_however_it_is_sent(
    sends: list[Callable[[int, int], None]], name: str
) -> None:
    with commands.started("-c", LEADER, sys.executable, "-c", COUNTS_TO_THE_END) as (launcher, printed):
        assert printed.readline() == "ready\n"
        for send in sends:
            send(launcher.pid, signal.Signals[name])
        assert printed.readline() == "came\n"
        os.kill(launcher.pid, signal.SIGUSR2)  # is passed on after the others: they were sent before
        assert printed.readline() == f"['{name}']\n"


def test_a_signal_to_the_group_reaches_a_program_that_has_left_it() -> None:
    script = f"import os; os.setpgid(0, 0)\n{REPORTS}"
    with commands.started("-c", LEADER, sys.executable, "-c", script) as (launcher, printed):
        assert printed.readline() == "ready\n"
        os.killpg(launcher.pid, signal.SIGTERM)
        assert (printed.read(), launcher.wait(SAFETY_S)) == ("SIGTERM\n", 9)


def test_a_helper_that_ends_by_itself_soon_after_the_program_is_not_left_behind() -> None:
    reporting = LAUNCHER.replace("'GPU-a'}", "'GPU-a'}, report=print")
    helper = "exec 3<&0; { cat <&3; sleep 0.3; } > /dev/null 2>&1 &"  # as multiprocessing's resource tracker
    done = commands.run("-c", reporting, "sh", "-c", helper)
    assert (done.returncode, done.stdout) == (0, "")


LEAVES = """
import os, signal, subprocess, sys
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('set', flush=True); " \
    "time.sleep(600)"
parent = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {0!r}]); time.sleep(600)"
for new_session, script in ((False, stubborn), (True, parent.format(stubborn))):
    command = [sys.executable, "-c", script]
    child = subprocess.Popen(command, start_new_session=new_session, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"set\\n"
    print(child.pid)
os.kill(child.pid, signal.SIGSTOP)
"""


def test_children_in_other_sessions_their_children_and_those_that_ignore_sigterm_are_ended_and_named() -> (
    None
):
    impatient = LAUNCHER.replace("'GPU-a'}", "'GPU-a'}, report=print, left_s=0.2, term_s=0.2")
    done = commands.run("-c", impatient, sys.executable, "-c", LEAVES)
    *pids, said = done.stdout.splitlines()
    assert "left 3 processes running" in said
    assert len(pids) == 2
    for pid in re.findall(r"(\d+) \(", said):
        assert not Path(f"/proc/{pid}").exists()
    assert {f"{pid} (" in said for pid in pids} == {True}


STOPS = """
import os, sys, threading
from gputopo.launch.user_program import ProgramStop, run_to_end
stop, ready = ProgramStop(), sys.argv[1]
def ask():
    open(ready).read()  # the program and its child ignore SIGTERM from here on
    assert stop.ask()
threading.Thread(target=ask, daemon=True).start()
program = ["sh", "-c", "trap '' TERM; sleep 600 >/dev/null 2>&1 & echo $!; : >$0; wait; wait", ready]
ending = run_to_end(program, dict(os.environ), report=print, stop=stop, term_s=0.2)
print(ending.status, ending.exit_code, ending.stopped, stop.ask())
"""


def test_a_program_that_another_thread_stops_is_killed_with_its_children(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    done = commands.run("-c", STOPS, str(ready))
    pid, *said = done.stdout.splitlines()
    assert said[-1] == "-9 3 3 False"
    assert not Path(f"/proc/{pid}").exists()


def test_a_program_that_is_not_there_is_bad_usage() -> None:
    with pytest.raises(UsageError, match="there is no program no-such-program-here"):
        check_program(["no-such-program-here"], os.environ)


def test_a_script_that_may_not_be_run_is_advised_how_to_run_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    with pytest.raises(UsageError, match="is not executable") as error:
        check_program([str(script)], os.environ)
    assert "-- python" in error.value.hint


def test_a_file_that_the_system_cannot_run_ends_with_126_and_one_line(tmp_path: Path) -> None:
    script = tmp_path / "no-shebang"
    script.write_bytes(b"\x7fELFbroken")
    script.chmod(0o755)
    code, _, err = finish(str(script))
    assert (code, err) == (126, f"cannot run {script}: Exec format error\n")
