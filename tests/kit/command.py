"""gputopo on a machine of the kit: `python -m tests.kit.command SCENARIO[+FAULT...] -- inspect --json`.

`four+power_cap_low@2+acs_on` is the machine `four` with two faults (`tests.kit.faults`), one of them GPU 2's.
The double and the tree are in place before gputopo starts, in a process of its own. The tree's folder goes
to gputopo in the environment variable GPUTOPO_ROOT. With `--tree` the folder is written once and then kept
for the next time, so that benchmarks do not measure the writing; without, it is a temporary one.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS
from tests.kit.specs import Scenario


def main(arguments: Sequence[str]) -> int:
    """Run the command line after `--` on the scenario and give its exit code."""
    own, command = _split(arguments)
    try:
        scenario = _scenario(own)
    except ValueError as error:
        usage = "SCENARIO[+FAULT[@GPU]...] [--tree FOLDER] -- COMMAND"
        print(f"{error}\nusage: {usage}; scenarios: {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        return run(scenario, Path(own[2]) if len(own) == 3 else Path(folder), command)


def _scenario(own: Sequence[str]) -> Scenario:
    if len(own) not in (1, 3) or own[1:2] not in ([], ["--tree"]):
        raise ValueError("one scenario is wanted, and a folder after --tree")
    if own[0] in SCENARIOS:
        return SCENARIOS[own[0]]
    from tests.kit.faults import selected  # not needed, and not loaded, where a start is timed

    return selected(own[0])


def run(scenario: Scenario, root: Path, command: Sequence[str]) -> int:
    """Run one gputopo command in this process on a scenario whose tree is, or will be, under `root`."""
    if not (root / "sys").exists():
        from tests.kit.sysfs import write_tree

        write_tree(scenario, root)
    os.environ["GPUTOPO_ROOT"] = str(root)
    sys.argv = ["gputopo", *command]
    from gputopo.cli import main as gputopo

    with installed(FakeNvml(scenario)):
        try:
            gputopo()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(arguments)
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
