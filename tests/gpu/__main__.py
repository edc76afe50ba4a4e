"""What only a GPU can show: `python -m tests.gpu [--keep FOLDER] [--gpus 0,1] [--nvbandwidth PROGRAM]`.

Needs a machine with an NVIDIA GPU and eight minutes; elsewhere it is skipped, with the reason. It ends with a
table of what agreed, what did not, and what could not be tried. FOLDER then has the table, recordings, all
rates, versions and timings, without serials and UUIDs, to be sent in. With `--double SCENARIO` it runs on the
doubles of `tests.kit`, which try the checks and no GPU. TensorFlow and PyTorch are used if they are there.
"""

import argparse
import contextlib
import platform
import re
import shlex
import shutil
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

from tests.gpu.box import ROOT, Box, is_installed
from tests.gpu.checks import rows

# What `inspect`, `bandwidth` and `run -- PROGRAM` import, and the distribution that has it.
MODULES = {
    "pynvml": "nvidia-ml-py",
    "psutil": "psutil",
    "rich": "rich",
    "typer": "typer",
    "msgspec": "msgspec",
    "defusedxml": "defusedxml",
    "platformdirs": "platformdirs",
    "cuda.bindings": "cuda-bindings",
}
_OTHERS = ("torch", "tensorflow", "nvidia-cudnn-cu12", "nvidia-nccl-cu12", "jinja2", "numpy")
MISSING = 3  # exit code
VERDICTS = {True: "agreed", False: "NOT", None: "not tried"}
# Of a double: what is copied is stored, and takes time, so that cards and copies are small.
_DOUBLE_WORDS = (f"memory={2**30}", "start=0")
_DOUBLE_QUICK = ("--effort", "1", "--size", "64MiB")


def what_is_missing() -> str | None:
    """Return what Python lacks, and the command that installs it, in one line; None if it lacks nothing."""
    for name in ("probes", "launch"):  # links, which some ways to copy a clone drop
        if not (ROOT / "gputopo" / name).is_dir():
            return f"missing: gputopo/{name}; to make it: ln -s ../{name} {ROOT}/gputopo/{name}"
    absent = [name for module, name in MODULES.items() if not is_installed(module)]
    if not absent:
        return None
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    wanted = [one for one in declared if re.split(r"[^\w-]", one)[0] in absent]
    command = shlex.join([sys.executable, "-m", "pip", "install", *wanted])
    return f"missing: {', '.join(absent)}; to install: {command}"


def versions() -> str:
    """Return the versions of what takes part, one a line."""
    lines = [f"python {platform.python_version()}", f"system {platform.platform()}"]
    for name in (*MODULES.values(), *_OTHERS):
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name} is not installed")
    return "".join(f"{line}\n" for line in lines)


def doubled(folder: Path, name: str, *faults: str) -> Box:
    """Return a machine of the kit, with faults of CUDA (`tests.kit.cuda.words`)."""
    from tests.kit.cuda.derive import from_scenario
    from tests.kit.cuda.layouts import named
    from tests.kit.cuda.session import environment
    from tests.kit.cuda.words import spoilt

    words = (*_DOUBLE_WORDS, *faults)
    given = environment(spoilt(from_scenario(named(name)), words)) | {"GPUTOPO_DOUBLE": name}
    gputopo = (sys.executable, "-m", "tests.kit.command", name, "--cuda", "+".join(words), "--")
    return Box(folder, gputopo, environment=given, quick_words=_DOUBLE_QUICK, is_double=True)


def main() -> int:
    """Run all checks and print the table. Exit codes: 1 something did not agree, 3 a package is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    for name in ("--keep", "--gpus", "--nvbandwidth", "--double"):
        parser.add_argument(name)
    given = parser.parse_args()
    if missing := what_is_missing():
        print(missing, file=sys.stderr)
        return MISSING
    folder = Path(given.keep or tempfile.mkdtemp(prefix="gputopo-gpu-"))
    folder.mkdir(parents=True, exist_ok=True)
    box = Box(folder) if given.double is None else doubled(folder, given.double)
    box.nvbandwidth = given.nvbandwidth or shutil.which("nvbandwidth")
    box.limit = ("--gpus", given.gpus) if given.gpus else ()
    with contextlib.suppress(RuntimeError):  # a check shows it
        if refused := box.alone("devices")["refused"]:
            print(f"skipped: {refused}")
            if given.keep is None:
                shutil.rmtree(folder)
            return 0
    return report(box)


def report(box: Box) -> int:
    """Run the checks of a machine and keep what they find. Return the exit code."""
    box.write("versions.txt", versions())
    lines: list[str] = []
    counts = dict.fromkeys(VERDICTS, 0)
    for what, words, verdict in rows(box):
        counts[verdict] += 1
        lines.append(box.masked(f"{VERDICTS[verdict]:9}  {what}: {words}"))
        print(lines[-1], flush=True)
        box.write("table.txt", "".join(f"{line}\n" for line in lines))
        box.write("timings.txt", "".join(f"{line}\n" for line in box.timings))
    end = ", ".join(f"{count} {VERDICTS[verdict]}" for verdict, count in counts.items())
    print(f"{end}; {box.spent_s:.0f} s; kept in {box.folder}")
    return int(counts[False] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
