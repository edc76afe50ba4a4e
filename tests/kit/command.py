"""gputopo on a machine of the kit: `python -m tests.kit.command SCENARIO[+FAULT...] -- inspect --json`.

`four+power_cap_low@2+acs_on` is the machine `four` with two faults (`tests.kit.faults`), one of them on GPU
2. The double and the tree are set up before gputopo starts, in a separate process. gputopo gets the tree's
folder in the environment variable GPUTOPO_ROOT. With `--tree`, the folder is written once and kept for the
next time, so that benchmarks do not measure the writing; otherwise it is temporary.

With `--cuda WORDS` the machine has CUDA as well (`tests.kit.cuda`), with these faults:
`--cuda wrong@h2d:3+lost@4`, or `--cuda ''` for none. The scenario may also be one of
`tests.kit.cuda.layouts`. The process restarts itself for this, because the loader reads its library path only
when a process starts.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS
from tests.kit.specs import Scenario

_USAGE = "SCENARIO[+FAULT[@GPU]...] [--tree FOLDER] [--cuda WORDS] -- COMMAND"
_ANEW = "--with-cuda"  # in place of --cuda after the restart: the double is loaded


def main(arguments: Sequence[str]) -> int:
    """Run the command line after `--` on the scenario and return its exit code."""
    own, command = _split(arguments)
    try:
        name, tree, words = _options(own)
        scenario = _scenario(name)
        if words is not None and _ANEW not in own:
            _start_anew(scenario, words, arguments)
    except ValueError as error:
        print(f"{error}\nusage: {_USAGE}; scenarios: {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        return run(scenario, Path(tree or folder), command)


def _options(own: Sequence[str]) -> tuple[str, str | None, str | None]:
    """Return the scenario's name, the folder of --tree and the words of --cuda."""
    options = dict(zip(own[1::2], own[2::2], strict=False))
    if len(own) % 2 == 0 or len(options) * 2 + 1 != len(own) or set(options) - {"--tree", "--cuda", _ANEW}:
        raise ValueError("one scenario is wanted, a folder after --tree, and faults after --cuda")
    return own[0], options.get("--tree"), options.get("--cuda", options.get(_ANEW))


def _scenario(text: str) -> Scenario:
    if text in SCENARIOS:
        return SCENARIOS[text]
    from tests.kit.faults import broken, selected  # not loaded when a start is timed without faults

    name, *faults = text.split("+")
    if name in SCENARIOS:
        return selected(text)
    from tests.kit.cuda.layouts import named

    return broken(named(name), *faults)


def _start_anew(scenario: Scenario, words: str, arguments: Sequence[str]) -> None:
    """Replace this process by one that finds the double of CUDA. Raises ValueError for unknown words."""
    from tests.kit.cuda.build import NoCompilerError
    from tests.kit.cuda.derive import from_scenario
    from tests.kit.cuda.session import environment
    from tests.kit.cuda.words import spoilt

    spec = spoilt(
        from_scenario(scenario), [word for word in words.split("+") if word not in ("", scenario.name)]
    )
    try:
        given = environment(spec)
    except NoCompilerError as error:
        raise ValueError(str(error)) from error
    again = [_ANEW if word == "--cuda" else word for word in arguments]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-m", "tests.kit.command", *again], given)


def run(scenario: Scenario, root: Path, command: Sequence[str]) -> int:
    """Run one gputopo command in this process on a scenario; its tree is written under `root` if missing."""
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
