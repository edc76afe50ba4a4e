"""`python misbehave.py BEHAVIOUR SPEC_FILE EVENTS_FD`: a worker with one fault, or with none.

Each function is one behaviour. Only the standard library, so that it starts in a few milliseconds.
What hangs waits for a signal, and does not poll.
"""

from __future__ import annotations

import faulthandler
import os
import sys

# Hundreds of workers start in a run of the tests. json, signal and collections.abc take as long to import as
# all else, so a worker that trains without a fault loads none of them.
TYPE_CHECKING = False
if TYPE_CHECKING or __name__ != "__main__" or sys.argv[1] not in ("works", "allocates", "slow_tower"):
    import json
    import signal
    from collections.abc import Callable

FD = 0
ALL: dict[str, Callable[[], None]] = {}


def behaviour(function: Callable[[], None]) -> Callable[[], None]:
    ALL[function.__name__] = function
    return function


def send(event: str, **fields: object) -> None:
    document = {"event": event, "time_s": 1.0, **fields}
    text = json.dumps(document) if "json" in globals() else repr(document).replace("'", '"')
    os.write(FD, text.encode() + b"\n")


def step(number: int, slow_tower: int | None = None) -> None:
    marks = [
        {
            "tower": tower,
            "start_s": 0.0,
            "weights_s": 0.001,
            "compute_s": 0.1 * (2 if tower == slow_tower else 1),
        }
        for tower in (0, 1)
    ]
    send("step", step=number, seconds=0.2, images=8, loss=1.0, marks=marks)


def hang() -> None:
    while True:
        signal.pause()


@behaviour
def serves() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    send("phase", phase="serving")
    hang()


@behaviour
def works() -> None:
    for number in range(1, 4):
        step(number)


@behaviour
def allocates() -> None:
    works()
    send("memory_peak", host_bytes=1 << 30, devices={"/GPU:0": 4 << 30})


@behaviour
def slow_tower() -> None:
    for number in range(1, 41):
        step(number, slow_tower=1)


@behaviour
def traceback() -> None:
    step(1)
    print("loading")
    raise ValueError("the shapes (3,) and (4,) do not go together")


@behaviour
def killed() -> None:
    step(1)
    os.write(2, b"about to go")
    os.kill(os.getpid(), signal.SIGKILL)


@behaviour
def crashes_in_the_exchange() -> None:
    send("phase", phase="exchange")
    os.kill(os.getpid(), signal.SIGABRT)


@behaviour
def crashes_after_the_exchange() -> None:
    send("phase", phase="exchange")
    step(1)
    os.kill(os.getpid(), signal.SIGABRT)


def works_unless_by_nccl(fails: Callable[[], None]) -> None:
    with open(sys.argv[2]) as file:
        if json.load(file)["all_reduce"] == "nccl":
            send("phase", phase="NCCL test")
            fails()
    works()


@behaviour
def is_refused_by_nccl() -> None:
    def fails() -> None:
        os.write(2, b"NCCL WARN Error while creating shared memory segment\n")
        failed("placement", "the reduction 'nccl' failed: NCCL: unhandled system error.", "see NCCL_DEBUG")
        sys.exit(3)

    works_unless_by_nccl(fails)


@behaviour
def crashes_in_nccl() -> None:
    works_unless_by_nccl(lambda: os.kill(os.getpid(), signal.SIGSEGV))


@behaviour
def hangs_in_nccl() -> None:
    works_unless_by_nccl(hang)


@behaviour
def fails_in_nccl_and_in_training() -> None:
    is_refused_by_nccl()
    os.kill(os.getpid(), signal.SIGKILL)


@behaviour
def crashes_after_nccl() -> None:
    def fails() -> None:
        send("phase", phase="building")
        os.kill(os.getpid(), signal.SIGSEGV)

    works_unless_by_nccl(fails)


@behaviour
def needs_a_batch_of_one() -> None:
    with open(sys.argv[2]) as file:
        batch_size = json.load(file)["batch_size"]
    if (max(batch_size) if isinstance(batch_size, list) else batch_size) > 1:
        failed("out_of_memory", f"no memory for {batch_size}", "use a smaller --batch-size")
        sys.exit(3)
    step(1)


@behaviour
def reports_two_failures() -> None:
    failed("out_of_memory", "the first", "a")
    failed("error", "the second", "b")
    sys.exit(1)


@behaviour
def hangs() -> None:
    step(1)
    hang()


@behaviour
def hangs_with_stacks() -> None:
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)
    step(1)
    hang()


@behaviour
def is_stopped() -> None:
    step(1)
    os.kill(os.getpid(), signal.SIGSTOP)


@behaviour
def ignores_sigterm_and_hangs() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    step(1)
    hang()


@behaviour
def is_killed_until_it_resumes() -> None:
    step(1)
    step(2)
    if os.path.basename(sys.argv[2]).startswith("restart-"):
        with open(sys.argv[2]) as spec:
            assert json.load(spec)["lifecycle"]["resume_or_start"]
        return
    send("checkpoint_saved", path="c", steps=12, bytes=1, seconds=0.1)
    step(3)
    os.kill(os.getpid(), signal.SIGKILL)


def awaits_sigint(*more: signal.Signals) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *more})
    send("placement", variables={}, ops={}, first_step_s=1.0)
    step(1)
    signal.sigwait({signal.SIGINT, *more})


@behaviour
def hangs_before_all() -> None:
    hang()


@behaviour
def takes_sigterm_as_asked() -> None:
    awaits_sigint(signal.SIGTERM)
    failed("interrupted", "stopped by Ctrl-C (SIGINT)", "start it again")
    sys.exit(130)


@behaviour
def ends_as_asked() -> None:
    awaits_sigint()
    step(2)
    send("checkpoint_saved", path="c", steps=3, bytes=1, seconds=0.1)
    failed("interrupted", "stopped by Ctrl-C (SIGINT)", "start it again")
    sys.exit(130)


@behaviour
def does_not_end_as_asked() -> None:
    awaits_sigint()
    send("phase", phase="checkpoint")
    hang()


@behaviour
def ignores_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    step(1)
    hang()


@behaviour
def half_a_line() -> None:
    step(1)
    os.write(FD, b'{"event": "step", "time_')


@behaviour
def garbage() -> None:
    step(1)
    os.write(FD, b"\x00\xffnot an event\n")
    hang()


@behaviour
def nothing() -> None:
    pass


@behaviour
def floods_stderr() -> None:
    for _ in range(64):
        os.write(2, b"x" * 65535 + b"\n")
    step(1)
    os.write(2, b"the last line\n")
    os.write(1, b"and one on stdout")


@behaviour
def leaves_a_grandchild() -> None:
    ready, report_ready = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(report_ready, b"r")
        hang()
    os.read(ready, 1)
    print(child, flush=True)
    step(1)


@behaviour
def reports_its_pid_to_a_fifo_and_hangs() -> None:
    with open(os.environ["FIFO"], "w") as fifo:
        fifo.write(f"{os.getpid()}\n")
        fifo.flush()
        hang()


@behaviour
def prints_its_environment() -> None:
    print(json.dumps(dict(os.environ)))
    step(1)


def failed(kind: str, cause: str, remedy: str) -> None:
    send("rank_failed", kind=kind, cause=cause, remedy=remedy, exit_code=3)


if __name__ == "__main__":
    FD = int(sys.argv[3])
    ALL[sys.argv[1]]()
