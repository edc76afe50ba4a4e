"""The constants of a program adjusted to one box by its own runs: two numbers. Pure.

One multiplies the share of their rates that links reach, the other the cost of each variable. They are found
by least squares, as the constants themselves are (`gputopo.prediction.fit`).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gputopo.prediction.programs import Program
from gputopo.prediction.step import Model, Placing, Stepper

# Both numbers stay between a fifth and five times, and a run counts 20 times as much as a factor of e.
_BOUND = 1.6
_PULL = 0.05


class Run(NamedTuple):
    """A run of several GPUs: what its prediction needs, and the seconds of its step as measured.

    `cpus`: CPU sockets; `weights`, `gradients`: seconds a byte of the slowest link.
    """

    model: Model
    towers: int
    cpus: int
    compute_s: float
    placing: Placing
    weights: float
    gradients: float
    step_s: float


def adjusted(program: Program, links: float, variables: float) -> Program:
    """Return a program with `links` times its share of links, and `variables` times its cost of variables."""
    return msgspec.structs.replace(
        program,
        link_share=program.link_share * links,
        ring_share=program.ring_share * links,
        host_add_gb_per_s=program.host_add_gb_per_s * links,
        us_cpu=program.us_cpu * variables,
        us_host=program.us_host * variables,
        us_device=program.us_device * variables,
        us_ring=program.us_ring * variables,
        ring_mb=program.ring_mb * variables,
    )


def calibrated(program: Program, runs: Sequence[Run]) -> Program:
    """Return the program adjusted to the runs of one box, as it is without runs."""

    def errors(logarithms: Sequence[float]) -> list[float]:
        own = adjusted(program, *map(math.exp, logarithms))
        return [_error(own, run) for run in runs] + [_PULL * value for value in logarithms]

    if not runs:
        return program
    return adjusted(program, *map(math.exp, least_squares(errors, [0.0, 0.0], [(-_BOUND, _BOUND)] * 2)))


def _error(program: Program, run: Run) -> float:
    stepper = Stepper(run.model, program, run.towers, run.cpus)
    step_s = run.compute_s + sum(stepper.predict(run.placing, run.compute_s, run.weights, run.gradients))
    return math.log(step_s / run.step_s)


def least_squares(
    function: Callable[[Sequence[float]], list[float]],
    start: Sequence[float],
    bounds: Sequence[tuple[float, float]],
    rounds: int = 60,
) -> list[float]:
    """Return the values within their bounds at which the squares of the function's numbers sum up least.

    Levenberg and Marquardt's method in units of the bounds' distance, with differences for derivatives.
    """
    span = [high - low for low, high in bounds]

    def clipped(values: Iterable[float]) -> list[float]:
        return [min(max(value, low), high) for value, (low, high) in zip(values, bounds, strict=True)]

    values, damping = clipped(start), 1e-2
    here = function(values)
    cost = sum(number * number for number in here)
    for _ in range(rounds):
        rows = []
        for number, width in enumerate(span):
            moved = list(values)
            delta = 1e-4 * width if values[number] + 1e-4 * width <= bounds[number][1] else -1e-4 * width
            moved[number] += delta
            rows.append([(b - a) * width / delta for a, b in zip(here, function(moved), strict=True)])
        slope = [sum(a * b for a, b in zip(row, here, strict=True)) for row in rows]
        at_bound = [
            (value <= low and g > 0) or (value >= high and g < 0)
            for value, (low, high), g in zip(values, bounds, slope, strict=True)
        ]
        free = [number for number, stuck in enumerate(at_bound) if not stuck]
        normal = [[sum(a * b for a, b in zip(rows[i], rows[j], strict=True)) for j in free] for i in free]
        diagonal = [row[number] for number, row in enumerate(normal)]
        before = cost
        while damping < 1e6:
            for number, row in enumerate(normal):
                row[number] = diagonal[number] + damping * (diagonal[number] + 1e-6)
            step = solve(normal, [-slope[number] for number in free])
            moved = list(values)
            for number, change in zip(free, step, strict=True):
                moved[number] += change * span[number]
            moved = clipped(moved)
            there = function(moved)
            found = sum(number * number for number in there)
            if found < cost:
                values, here, cost, damping = moved, there, found, damping / 4
                break
            damping *= 4
        if before - cost < 1e-7 * before:
            break
        damping = min(damping, 1e3)
    return values


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Return the solution of linear equations, by elimination with pivots."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(len(rows)):
        pivot = max(range(column, len(rows)), key=lambda number: abs(rows[number][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for number, row in enumerate(rows):
            if number != column and row[column]:
                factor = row[column] / rows[column][column]
                rows[number] = [a - factor * b for a, b in zip(row, rows[column], strict=True)]
    return [row[-1] / row[number] for number, row in enumerate(rows)]
