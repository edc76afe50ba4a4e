"""Pretends to be `gputopo run` on a host: `pretends.py BEHAVIOUR,BEHAVIOUR...`, one for each rank.

fine: prints a result and ends. fails: ends with 2 before the training. breaks: ends with 3 within it. train:
trains until SIGINT or SIGTERM. deaf: ignores both. lasts: trains until rank 1 has ended, and ends well.
killed: kills itself. Each writes its process id into a file.
"""

import os
import signal
import sys
import time
from pathlib import Path

LEADER_S = 0.2  # that of the tests' driver
HERE = Path(os.environ.get("GPUTOPO_HOME", "."))


def main(behaviours: list[str], arguments: list[str]) -> int:
    """Behave as the rank of this process."""
    rank = int(arguments[arguments.index("--node-rank") + 1])
    behaviour = behaviours[rank]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    (HERE / f"rank-{rank}").write_text(str(os.getpid()))
    say(f"gputopo: rank {rank}: {behaviour}")
    print(f"stdout of rank {rank} in {os.getcwd()}", flush=True)
    if behaviour == "fine":
        return 0
    if behaviour == "fails":
        say("gputopo: this host is no good\n  take another")
        return 2
    os.write(int(os.environ["GPUTOPO_BEGUN"]), b"1")
    say(f"gputopo: rank {rank} trains")
    if behaviour == "breaks":
        return 3
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "lasts":
        while not (HERE / "rank-1").exists() or Path(f"/proc/{(HERE / 'rank-1').read_text()}").exists():
            time.sleep(0.02)
        time.sleep(3 * LEADER_S)
        return 0
    ended = signal.sigwait([signal.SIGINT, signal.SIGTERM] if behaviour != "deaf" else [signal.SIGUSR1])
    say(f"gputopo: stopped by {signal.Signals(ended).name}")
    return 128 + ended


def say(text: str) -> None:
    """Write to stderr."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].split(","), sys.argv[2:]))
