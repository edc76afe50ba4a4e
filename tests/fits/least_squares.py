"""Levenberg and Marquardt's method within bounds."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def least_squares(
    function: Callable[[Sequence[float]], list[float]],
    start: Sequence[float],
    bounds: Sequence[tuple[float, float]],
    rounds: int = 60,
) -> list[float]:
    """Return the values within their bounds at which the squares of the function's numbers sum up least.

    In units of the bounds' distance, with differences for derivatives.
    """
    low, high = np.array(bounds).T
    span = high - low

    def at(values: Values) -> Values:
        return np.array(function(values.tolist()))

    values, damping = np.clip(np.array(start), low, high), 1e-2
    here = at(values)
    for _ in range(rounds):
        steps = np.where(values + 1e-4 * span <= high, 1e-4, -1e-4)
        rows = np.array([(at(values + one * step) - here) / step for one, step in _units(span, steps)])
        slope = rows @ here
        free = ~(((values <= low) & (slope > 0)) | ((values >= high) & (slope < 0)))
        normal = (rows @ rows.T)[np.ix_(free, free)]
        diagonal, before = normal.diagonal().copy(), here @ here
        while damping < 1e6:
            damped = normal + np.diag(damping * (diagonal + 1e-6))
            moved = values.copy()
            moved[free] += np.linalg.solve(damped, -slope[free]) * span[free]
            moved = np.clip(moved, low, high)
            there = at(moved)
            if there @ there < before:
                values, here, damping = moved, there, damping / 4
                break
            damping *= 4
        if before - here @ here < 1e-5 * before:
            break
        damping = min(damping, 1e3)
    return [float(value) for value in values]


def _units(span: Values, steps: Values) -> list[tuple[Values, float]]:
    return [(row, float(step)) for row, step in zip(np.diag(span), steps, strict=True)]
