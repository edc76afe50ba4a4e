"""Fits the constants of the programs that train to published figures: `python -m gputopo.prediction.fit`.

Prints them, what they predict of machines that were left out, and how often they choose well; then the same
of one GPU by its datasheet, with the published figures that do not count. `--write` puts the programs into
`gputopo/reference/data/programs.json`, with those that other measurements decide as they are there;
`--write-roofline` the constants of one GPU into `gputopo/reference/data/roofline.json`.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from gputopo.captures.recording import bundled_names, read_bundled
from gputopo.prediction.calibration import Run, calibrated, learn, least_squares
from gputopo.prediction.one_gpu import fit as one_gpu
from gputopo.prediction.one_gpu.roofline import written as written_roofline
from gputopo.prediction.paths import Paths, paths_of
from gputopo.prediction.programs import Program, program_names, require_program
from gputopo.prediction.step import Model, Placing, Stepper, limits, model_of
from gputopo.reference.published import Published, published, published_machines
from gputopo.workload.workloads import require

# Where each constant may lie: what is physically possible, and what was ever observed.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "overlap": (0.0, 1.0),
    "ring_overlap": (0.0, 1.0),
    "wait_cpu": (0.0, 2.0),
    "wait_gpu": (0.0, 2.0),
    "return_share": (0.0, 2.0),
    "link_share": (0.5, 1.0),
    "ring_share": (0.2, 1.2),
    "host_add_gb_per_s": (2.0, 100.0),
    "us_cpu": (2.0, 60.0),
    "us_host": (2.0, 60.0),
    "us_device": (2.0, 60.0),
    "us_ring": (2.0, 200.0),
    "ring_mb": (0.0, 3.0),
}
NO_OVERLAP = {"overlap": 0.0, "ring_overlap": 0.0}
# A pull of each constant to its start, which decides where no figure does: residuals per width of its bounds.
PULL = 0.3
SPREAD = 0.05  # of the best over the worst of a group, above which a choice counts
NEAR = 0.02  # a choice this close to the best is a good one
COVERED = 0.9  # of the measurements on machines that were left out are inside low to high
# Choices within a group count more than its level: the ratio of residuals' weights.
WITHIN, LEVEL = 2.0, 1.2


class Case(NamedTuple):
    """A measurement with all of its prediction that no constant changes.

    `group`: the same job on the same machine; `weights`, `gradients`: seconds a byte of the slowest link.
    """

    group: tuple[object, ...]
    row: Published
    model: Model
    compute_s: float
    placing: Placing
    weights: float
    gradients: float
    cpus: int

    @property
    def towers(self) -> int:
        """GPUs of the run."""
        return len(self.row.gpus)

    @property
    def name(self) -> str:
        """Its place for variables."""
        row = self.row
        return f"{row.variable_update} {row.ps_device or row.all_reduce or ''}".strip()


class Constants:
    """Predictions of one program; the steps of each model and number of GPUs are set up once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._steppers: dict[tuple[str, int, int, bool], Stepper] = {}

    def images_per_sec(self, case: Case) -> float:
        """Return the predicted images/sec of all GPUs of a measurement."""
        key = case.row.model, case.towers, case.cpus, case.row.xla
        stepper = self._steppers.get(key)
        if stepper is None:
            # A compiled step hands over its gradients at the end.
            program = msgspec.structs.replace(self.program, **NO_OVERLAP) if case.row.xla else self.program
            stepper = self._steppers[key] = Stepper(case.model, program, case.towers, case.cpus)
        parts = stepper.predict(case.placing, case.compute_s, case.weights, case.gradients)
        return case.towers * case.row.batch_per_gpu / (case.compute_s + sum(parts))

    def error(self, case: Case) -> float:
        """Return the logarithm of predicted over measured images/sec."""
        return math.log(self.images_per_sec(case) / case.row.images_per_sec)


@cache
def paths_by_name(machine: str) -> Paths:
    """Return the paths of a bundled or a published machine."""
    if machine in bundled_names():
        return paths_of(read_bundled(machine))
    return paths_of(published_machines()[machine].machine())


@cache
def _model(name: str) -> Model:
    return model_of(require(name))


def cases(rows: Iterable[Published], paths_of_name: Callable[[str], Paths] = paths_by_name) -> list[Case]:
    """Return what can be predicted: several GPUs, a known place for variables, a one-GPU figure."""
    found = []
    for row in rows:
        single = row.single_gpu_images_per_sec or _between_depths(row)
        if len(row.gpus) == 1 or row.variable_update is None or single is None:
            continue
        placing = Placing(row.variable_update, row.ps_device, row.all_reduce)
        paths = paths_of_name(row.machine)
        (_, weights), (_, gradients) = limits(paths, row.gpus, placing)
        job = row.data, row.model, row.batch_per_gpu, row.precision, row.xla
        found.append(
            Case(
                (row.machine, row.source, row.version, *job, len(row.gpus)),
                row,
                _model(row.model),
                row.batch_per_gpu / single,
                placing,
                weights,
                gradients,
                paths.cpus,
            )
        )
    return found


def _between_depths(row: Published) -> float | None:
    """Return the one-GPU figure of resnet101 between those of resnet50 and resnet152, by layers."""
    if row.model != "resnet101":
        return None
    seconds = {
        other.model: 1 / other.single_gpu_images_per_sec
        for other in published()
        if (other.source, other.precision) == (row.source, row.precision) and other.single_gpu_images_per_sec
    }
    return 2 / (seconds["resnet50"] + seconds["resnet152"])


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


def grouped(some: Iterable[Case]) -> list[list[Case]]:
    """Return the measurements by group."""
    groups: dict[object, list[Case]] = defaultdict(list)
    for case in some:
        groups[case.group].append(case)
    return list(groups.values())


class Recipe(NamedTuple):
    """How the constants of a program are found: from where, and which ones published figures decide."""

    start: Program
    free: tuple[str, ...]


_TF_2017 = Program(
    name="tf_cnn_benchmarks-2017",
    source="fitted to images/sec of tf_cnn_benchmarks with TensorFlow 1.0 to 1.9: tensorflow.org/performance/"
    "benchmarks, tensorpack/benchmarks, LambdaColdStorage/cpu_benchmark, rossumai/keras-multi-gpu",
    overlap=0.3,
    ring_overlap=0.1,
    wait_cpu=0.6,
    wait_gpu=0.4,
    return_share=0.7,
    link_share=0.9,
    ring_share=0.7,
    host_add_gb_per_s=12.0,
    us_cpu=7.0,
    us_host=7.0,
    us_device=25.0,
    us_ring=37.0,
    ring_mb=0.1,
    cuts_variables=False,
    gathers=True,
    serial=False,
    low=0.8,
    high=1.2,
)
_KERAS = msgspec.structs.replace(
    _TF_2017,
    name="keras-2017",
    source="nothing overlaps, so all copies are waited for; the rest fitted to images/sec of Keras with "
    "TensorFlow 1 and a model on each GPU: rossumai/keras-multi-gpu; rings were never measured",
    overlap=0.0,
    ring_overlap=0.0,
    wait_cpu=1.0,
    wait_gpu=1.0,
    gathers=False,
    serial=True,
)


def recipes(fitted: Mapping[str, Program]) -> dict[str, Recipe]:
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
        _TF_2017.name: Recipe(_TF_2017, tuple(BOUNDS)),
        tf.name: Recipe(tf, ("ring_overlap", "ring_share", "us_ring", "ring_mb")),
        _KERAS.name: Recipe(_KERAS, ("link_share", "us_cpu", "us_device")),
    }


def our_own(tf: Program) -> Program:
    """Return the constants of gputopo's own program, which was never measured on a GPU."""
    return msgspec.structs.replace(
        tf,
        name="gputopo",
        source="never measured on a GPU: as tf_cnn_benchmarks, but gradients of a variable are added on its "
        "GPU, a large variable is cut, and weights are waited for as sums are; the range is wider for that",
        wait_gpu=tf.return_share,
        cuts_variables=True,
        gathers=False,
        low=0.8,
        high=1.2,
    )


def fit(recipe: Recipe, some: Sequence[Case]) -> Program:
    """Return the program whose constants fit the measurements best, within their bounds."""
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

    found = least_squares(at, begin, [BOUNDS[name] for name in free])
    rounded = {name: float(f"{value:.3g}") for name, value in zip(free, found, strict=True)}
    return msgspec.structs.replace(start, **rounded)


def without_each(recipe: Recipe, some: Sequence[Case]) -> dict[str, Program]:
    """Return, by machine, the program that was fitted without it."""
    machines = sorted({case.row.machine for case in some})
    return {
        machine: fit(recipe, [case for case in some if case.row.machine != machine]) for machine in machines
    }


class Score(NamedTuple):
    """How good predictions are: relative errors of images/sec, and what the predicted choices lose."""

    errors: tuple[float, ...]
    regrets: tuple[float, ...]

    def __str__(self) -> str:
        text = f"{len(self.errors):4} figures: "
        if self.errors:
            text += f"median {median(self.errors):.1%}, p90 {_quantile(self.errors, 0.9):.1%}, "
            text += f"worst {max(self.errors):.1%}"
        if self.regrets:
            near = fmean(regret <= NEAR for regret in self.regrets)
            text += f"; {len(self.regrets)} choices: mean regret {fmean(self.regrets):.2%}, "
            text += f"within {NEAR:.0%}: {near:.0%}"
        return text


def score(some: Iterable[Case], constants: Mapping[str, Constants], spread: float = SPREAD) -> Score:
    """Return how good each machine's constants are. Choices count if the best is `spread` above the worst."""
    errors: list[float] = []
    regrets: list[float] = []
    for group in grouped(some):
        here = constants[group[0].row.machine]
        errors += [abs(math.expm1(here.error(case))) for case in group]
        measured = [case.row.images_per_sec for case in group]
        several = len({(case.row.gpus, case.placing) for case in group}) > 1
        if several and max(measured) > (1 + spread) * min(measured):
            chosen = max(group, key=here.images_per_sec)
            regrets.append(1 - chosen.row.images_per_sec / max(measured))
    return Score(tuple(sorted(errors)), tuple(regrets))


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def with_range(program: Program, some: Sequence[Case], left_out: Mapping[str, Program]) -> Program:
    """Return the program with the range of measured over predicted of the machines that were left out."""
    ratios = sorted(math.exp(-Constants(left_out[case.row.machine]).error(case)) for case in some)
    tail = (1 - COVERED) / 2
    low, high = _quantile(ratios, tail), _quantile(ratios, 1 - tail)
    return msgspec.structs.replace(program, low=math.floor(100 * low) / 100, high=math.ceil(100 * high) / 100)


def used(program: str) -> list[Case]:
    """Return the measurements that a program's constants are fitted to: synthetic data, all in fp32.

    In fp16 these programs without XLA lose half of their speed with several GPUs and batch normalization,
    whatever the links.
    """
    rows = [row for row in published() if row.program == program]
    return [
        case
        for case in cases(rows)
        if (case.row.data, case.row.precision) == ("synthetic", "fp32")
        and not case.row.is_suspect
        and case.placing.traffic != "none"
    ]


# A model of many bytes and one of many variables: each shows one of the two numbers of a box.
SHORT_RUNS = ("vgg16", "resnet152")


def with_two_runs(left_out: Mapping[str, Program], some: Iterable[Case]) -> tuple[list[float], list[float]]:
    """Return the errors of each box's other models, as they are and with short runs of that box.

    `left_out`: by machine, the program that was fitted without it. The short runs have the placement of the
    others, and each of the two models.
    """
    before: list[float] = []
    after: list[float] = []
    boxes: dict[object, list[Case]] = defaultdict(list)
    for case in some:
        boxes[case.row.machine, case.towers, case.placing, case.row.xla].append(case)
    for box in boxes.values():
        runs = [case for case in box if case.row.model in SHORT_RUNS]
        if {case.row.model for case in runs} == {*SHORT_RUNS}:
            program = left_out[box[0].row.machine]
            compiled = msgspec.structs.replace(program, **NO_OVERLAP) if box[0].row.xla else program
            learned = learn(compiled, [_run(case) for case in runs])
            own = Constants(program if learned is None else calibrated(program, learned))
            others = [case for case in box if case not in runs]
            before += [abs(math.expm1(Constants(program).error(case))) for case in others]
            after += [abs(math.expm1(own.error(case))) for case in others]
    return before, after


def _run(case: Case) -> Run:
    step_s = case.towers * case.row.batch_per_gpu / case.row.images_per_sec
    return Run(
        case.model, case.towers, case.cpus, case.compute_s, case.placing, case.weights, case.gradients, step_s
    )


def with_two_runs_of_all(
    found: Mapping[str, tuple[Program, Mapping[str, Program]]],
) -> tuple[list[float], list[float]]:
    """Return the errors of `with_two_runs` of all fitted programs."""
    errors = [with_two_runs(left_out, used(name)) for name, (_, left_out) in found.items()]
    return [one for before, _ in errors for one in before], [one for _, after in errors for one in after]


def two_runs_line(errors: tuple[list[float], list[float]]) -> str:
    """Return the errors of other models in words."""
    before, after = errors
    less = 1 - median(after) / median(before)
    return (
        f"{len(before):4} figures of other models: median {median(before):.1%}, "
        f"with two short runs of each box {median(after):.1%} ({less:.0%} less)"
    )


def _report(program: Program, left_out: Mapping[str, Program], some: Sequence[Case]) -> str:
    lines = [f"{program.name}: {', '.join(f'{name} {getattr(program, name):g}' for name in BOUNDS)}"]
    here = {machine: Constants(program) for machine in left_out}
    without = {machine: Constants(one) for machine, one in left_out.items()}
    lines += [f"  fitted           {score(some, here)}", f"  each left out    {score(some, without)}"]
    for machine in left_out:
        own = [case for case in some if case.row.machine == machine]
        lines.append(f"    {machine:15}{score(own, without)}")
    errors = with_two_runs(left_out, some)
    if errors[0]:
        lines.append(f"  {two_runs_line(errors)}")
    lines.append(f"  range            {program.low:g} to {program.high:g} of the prediction")
    return "\n".join(lines)


def fit_all() -> dict[str, tuple[Program, dict[str, Program]]]:
    """Return each fitted program with those that were fitted without each machine."""
    found: dict[str, tuple[Program, dict[str, Program]]] = {}
    for name in recipes({}):
        recipe = recipes({done: program for done, (program, _) in found.items()})[name]
        some = used(name)
        left_out = without_each(recipe, some)
        found[name] = with_range(fit(recipe, some), some, left_out), left_out
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m gputopo.prediction.fit", description=__doc__)
    parser.add_argument("--program", choices=recipes({}), help="print only this one")
    parser.add_argument("--write", metavar="FILE", help="write all programs to this file")
    parser.add_argument("--write-roofline", metavar="FILE", help="write those of one GPU to this file")
    options = parser.parse_args(arguments)
    found = fit_all()
    for name, (program, left_out) in found.items():
        if options.program in (None, name):
            print(_report(program, left_out, used(name)))
    if options.program is None:
        print(f"all programs, each machine left out\n  {two_runs_line(with_two_runs_of_all(found))}")
    roofline, words = one_gpu.report()
    if options.program is None:
        print(words)
    if options.write_roofline:
        Path(options.write_roofline).write_text(written_roofline(roofline, one_gpu.SOURCE), encoding="utf-8")
    if options.write:
        fitted = [our_own(found["tf_cnn_benchmarks"][0]), *(program for program, _ in found.values())]
        known = map(require_program, program_names())
        Path(options.write).write_text(written(merged(fitted, known)), encoding="utf-8")


def merged(fitted: Sequence[Program], known: Iterable[Program]) -> list[Program]:
    """Return the programs that were fitted here, then those that were not as they are."""
    names = {program.name for program in fitted}
    return [*fitted, *(program for program in known if program.name not in names)]


def written(programs: Sequence[Program]) -> str:
    """Return the text of `programs.json`."""
    table = {"schema": "gputopo.programs/1", "programs": msgspec.to_builtins(programs)}
    return msgspec.json.format(msgspec.json.encode(table), indent=2).decode() + "\n"


if __name__ == "__main__":
    main()
