"""Pretends to be `gputopo run` on a host: `pretends.py BEHAVIOUR,BEHAVIOUR...`, one for each rank.

fine: prints a result and ends. shows: prints its words and variables as JSON.
fails: ends with 2 before the training. train: trains until SIGINT or SIGTERM.
deaf: ignores both. killed: kills itself. Each writes its process id into a file.
"""

import json
import os
import signal
import sys
from pathlib import Path

HERE = Path(os.environ.get("GPUTOPO_HOME", "."))


def main(behaviours: list[str], arguments: list[str]) -> int:
    """Behave as the rank of this process."""
    rank = int(arguments[arguments.index("--node-rank") + 1])
    behaviour = behaviours[rank]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    (HERE / f"rank-{rank}").write_text(str(os.getpid()))
    say(f"gputopo: rank {rank}: {behaviour}")
    if behaviour == "shows":
        print(json.dumps({"words": arguments, "environ": dict(os.environ)}))
        return 0
    print(f"stdout of rank {rank} in {os.getcwd()}", flush=True)
    if behaviour == "fine":
        return 0
    if behaviour == "fails":
        say("gputopo: this host is no good\n  take another")
        return 2
    say(f"gputopo: rank {rank} trains")
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    ended = signal.sigwait([signal.SIGINT, signal.SIGTERM] if behaviour != "deaf" else [signal.SIGUSR1])
    say(f"gputopo: stopped by {signal.Signals(ended).name}")
    return 128 + ended


def say(text: str) -> None:
    """Write to stderr."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].split(","), sys.argv[2:]))
