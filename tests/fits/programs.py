"""Fits the constants of the programs that train to published figures: `python -m tests.fits.programs`.

Prints them, what they predict of machines that were left out (`tests.fits.ranges` prints the ranges that
follow), and how far the datasheets of one GPU are off. `--write` puts the programs into
`gputopo/reference/data/programs.json`, with those that other measurements decide as they are there.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec

from gputopo.prediction import ProgramConstants, program_names, require_program
from tests.fits import one_gpu
from tests.fits.cases import Case, Constants, grouped, score, score_words, used
from tests.fits.least_squares import least_squares

# Where each constant may lie: what is physically possible, and what was ever observed.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "overlap": (0.0, 1.0),
    "ring_overlap": (0.0, 1.0),
    "wait": (0.0, 2.0),
    "return_share": (0.0, 2.0),
    "link_share": (0.5, 1.2),
    "ring_share": (0.2, 1.2),
    "host_add_gb_per_s": (2.0, 100.0),
    "us_cpu": (2.0, 100.0),
    "us_add": (2.0, 60.0),
    "us_device": (2.0, 60.0),
    "us_ring": (2.0, 200.0),
    "ring_mb": (0.0, 3.0),
}
# A pull of each constant to its start, which decides where no figure does: residuals per width of its bounds.
PULL = 0.3
# Choices within a group count more than its level: the ratio of residuals' weights.
WITHIN, LEVEL = 2.0, 1.2


def residuals(constants: Constants, by_group: Iterable[Sequence[Case]]) -> list[float]:
    """Return what the fit makes small: errors of the choices within each group, and of its level."""
    found = []
    for group in by_group:
        errors = [constants.error(case) for case in group]
        level = fmean(errors)
        if len(errors) > 1:
            found += [WITHIN * (error - level) for error in errors]
        found.append(LEVEL * level)
    return found


class Recipe(NamedTuple):
    """How the constants of a program are found: from where, and which ones published figures decide."""

    start: ProgramConstants
    free: tuple[str, ...]


_TF_2017 = ProgramConstants(
    name="tf_cnn_benchmarks-2017",
    source="fitted to images/sec of tf_cnn_benchmarks with TensorFlow 1.0 to 1.11: tensorflow.org/"
    "performance/benchmarks, tensorpack/benchmarks, LambdaColdStorage/cpu_benchmark, "
    "rossumai/keras-multi-gpu",
    overlap=0.3,
    ring_overlap=0.1,
    wait=0.5,
    return_share=0.7,
    link_share=1.0,  # fitted it ends at its bound, and choices on boxes left out are no better
    ring_share=0.7,
    host_add_gb_per_s=12.0,
    us_cpu=7.0,
    us_add=7.0,
    us_device=25.0,
    us_ring=37.0,
    ring_mb=0.1,
    adds="psgpu",
    cuts_variables=False,
    gathers=True,
)
_KERAS = msgspec.structs.replace(
    _TF_2017,
    name="keras-2017",
    source="nothing overlaps, so all copies are waited for; the rest fitted to images/sec of Keras with "
    "TensorFlow 1 and a model on each GPU: rossumai/keras-multi-gpu; rings were never measured",
    overlap=0.0,
    ring_overlap=0.0,
    wait=1.0,
    gathers=False,
)


def recipes(fitted: Mapping[str, ProgramConstants]) -> dict[str, Recipe]:
    """Return the recipes by program; those of `fitted` are where others start."""
    tf_2017 = fitted.get(_TF_2017.name, _TF_2017)
    tf = msgspec.structs.replace(
        tf_2017,
        name="tf_cnn_benchmarks",
        source="rings fitted to images/sec of tf_cnn_benchmarks with TensorFlow 1.15 to 2.3 and NCCL 2: "
        "lambdal/lambda-tensorflow-benchmark, fp32; all else as tf_cnn_benchmarks-2017",
        ring_overlap=0.5,
        ring_share=0.9,
        us_ring=30.0,
    )
    return {
        _TF_2017.name: Recipe(_TF_2017, tuple(name for name in BOUNDS if name != "link_share")),
        tf.name: Recipe(tf, ("ring_overlap", "ring_share", "us_ring", "ring_mb")),
        _KERAS.name: Recipe(_KERAS, ("link_share", "us_cpu", "us_device")),
    }


def our_own(tf: ProgramConstants) -> ProgramConstants:
    """Return the constants of gputopo's own program, which was never measured on a GPU."""
    return msgspec.structs.replace(
        tf,
        name="gputopo",
        source="never measured on a GPU: as tf_cnn_benchmarks, but gradients of a variable are added on its "
        "GPU, a large variable is cut, and weights are waited for as sums are",
        adds="copy",
        wait=tf.return_share,
        cuts_variables=True,
        gathers=False,
    )


def fit(recipe: Recipe, some: Sequence[Case], near: ProgramConstants | None = None) -> ProgramConstants:
    """Return the program whose constants fit the measurements best, within their bounds.

    `near`: one that fits nearly the same measurements, which is where the search begins.
    """
    start, free = recipe
    groups = grouped(some)
    begin = [getattr(start, name) for name in free]
    widths = [high - low for low, high in map(BOUNDS.__getitem__, free)]

    def at(values: Sequence[float]) -> list[float]:
        program = msgspec.structs.replace(start, **dict(zip(free, values, strict=True)))
        pulls = [
            PULL * (value - first) / width for value, first, width in zip(values, begin, widths, strict=True)
        ]
        return residuals(Constants(program), groups) + pulls

    found = least_squares(
        at, [getattr(near or start, name) for name in free], [BOUNDS[name] for name in free]
    )
    rounded = {name: float(f"{value:.3g}") for name, value in zip(free, found, strict=True)}
    return msgspec.structs.replace(start, **rounded)


def without_each(
    recipe: Recipe, some: Sequence[Case], fitted: ProgramConstants
) -> dict[str, ProgramConstants]:
    """Return, by machine, the program that was fitted without it. `fitted`: with all of them."""
    machines = sorted({case.row.machine for case in some})
    return {
        machine: fit(recipe, [case for case in some if case.row.machine != machine], fitted)
        for machine in machines
    }


def _report(program: ProgramConstants, left_out: Mapping[str, ProgramConstants], some: Sequence[Case]) -> str:
    lines = [f"{program.name}: {', '.join(f'{name} {getattr(program, name):g}' for name in BOUNDS)}"]
    here = {machine: Constants(program) for machine in left_out}
    without = {machine: Constants(one) for machine, one in left_out.items()}
    lines += [
        f"  fitted           {score_words(score(some, here))}",
        f"  each left out    {score_words(score(some, without))}",
    ]
    for machine in left_out:
        own = [case for case in some if case.row.machine == machine]
        lines.append(f"    {machine:15}{score_words(score(own, without))}")
    return "\n".join(lines)


def fitted_programs() -> dict[str, ProgramConstants]:
    """Return each fitted program."""
    found: dict[str, ProgramConstants] = {}
    for name in recipes({}):
        found[name] = fit(recipes(found)[name], used(name))
    return found


def fit_all() -> dict[str, tuple[ProgramConstants, dict[str, ProgramConstants]]]:
    """Return each fitted program with those that were fitted without each machine."""
    programs = fitted_programs()
    return {
        name: (programs[name], without_each(recipe, used(name), programs[name]))
        for name, recipe in recipes(programs).items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fits.programs", description=__doc__)
    parser.add_argument("--program", choices=recipes({}), help="print only this one")
    parser.add_argument("--write", metavar="FILE", help="write all programs to this file")
    options = parser.parse_args(arguments)
    found = fit_all()
    for name, (program, left_out) in found.items():
        if options.program in (None, name):
            print(_report(program, left_out, used(name)))
    if options.program is None:
        print(one_gpu.report())
    if options.write:
        fitted = [our_own(found["tf_cnn_benchmarks"][0]), *(program for program, _ in found.values())]
        known = map(require_program, program_names())
        Path(options.write).write_text(written(merged(fitted, known)), encoding="utf-8")


def merged(fitted: Sequence[ProgramConstants], known: Iterable[ProgramConstants]) -> list[ProgramConstants]:
    """Return the programs that were fitted here, then those that were not as they are."""
    names = {program.name for program in fitted}
    return [*fitted, *(program for program in known if program.name not in names)]


def written(programs: Sequence[ProgramConstants]) -> str:
    """Return the text of `programs.json`."""
    table = {"schema": "gputopo.programs/1", "programs": msgspec.to_builtins(programs)}
    return msgspec.json.format(msgspec.json.encode(table), indent=2).decode() + "\n"


if __name__ == "__main__":
    main()
