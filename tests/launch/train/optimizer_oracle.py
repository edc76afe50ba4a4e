"""Optimizers, decay, clipping and schedules in float64 numpy, written from their papers."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.launch.train.small_model import Array, loss_and_gradients


def train(
    first: Sequence[Array],
    images: Array,
    labels: Any,
    *,
    steps: int,
    rate: float,
    gradient_factor: float = 1.0,
    **options: Any,
) -> tuple[list[float], list[Array]]:
    """Return the loss before each step and the last weights. `gradient_factor`: towers, where added up."""
    weights = [array.astype(np.float64) for array in first]
    optimizer = _Optimizer(options, weights)
    losses = []
    for number in range(steps):
        loss, gradients = loss_and_gradients(weights, images.astype(np.float64), labels)
        losses.append(loss)
        ready = [
            gradient * gradient_factor + options.get("weight_decay", 0.0) * weight
            for gradient, weight in zip(gradients, weights, strict=True)
        ]
        now = rate * factor_at(options.get("schedule", {}), number)
        weights = optimizer.step(weights, _clipped(ready, options), now, number + 1)
    return losses, weights


def factor_at(schedule: dict[str, Any], number: int) -> float:
    kind = schedule.get("kind", "constant")
    factor = 1.0
    if kind == "piecewise":
        factor = schedule["factors"][sum(number >= boundary for boundary in schedule["boundaries"])]
    if kind == "exponential":
        factor = schedule["decay"] ** (number // schedule["decay_steps"])
    if kind == "cosine":
        factor = (1 + math.cos(math.pi * min(1.0, number / schedule["decay_steps"]))) / 2
    warmup = schedule.get("warmup_steps", 0)
    return factor * (number / warmup if number < warmup else 1.0)


def _clipped(gradients: list[Array], options: dict[str, Any]) -> list[Array]:
    if options.get("gradient_clip"):
        limit = options["gradient_clip"]
        gradients = [np.clip(gradient, -limit, limit) for gradient in gradients]
    if options.get("gradient_clip_norm"):
        norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
        if norm > options["gradient_clip_norm"]:
            gradients = [gradient * options["gradient_clip_norm"] / norm for gradient in gradients]
    return gradients


class _Optimizer:
    def __init__(self, options: dict[str, Any], weights: list[Array]) -> None:
        self._options = options
        self._name = options.get("optimizer", "sgd")
        self._one = [np.ones_like(w) if self._name == "rmsprop" else np.zeros_like(w) for w in weights]
        self._two = [np.zeros_like(w) for w in weights]

    def step(self, weights: list[Array], gradients: list[Array], rate: float, t: int) -> list[Array]:
        return [
            weight - self._change(number, gradient, rate, t)
            for number, (weight, gradient) in enumerate(zip(weights, gradients, strict=True))
        ]

    def _change(self, number: int, gradient: Array, rate: float, t: int) -> Array:
        o, one, two = self._options, self._one, self._two
        if self._name == "momentum":
            moving = one[number] = 0.9 * one[number] + gradient
            return rate * (gradient + 0.9 * moving) if o.get("nesterov") else rate * moving
        if self._name == "rmsprop":
            one[number] = 0.9 * one[number] + 0.1 * gradient**2
            two[number] = 0.9 * two[number] + rate * gradient / np.sqrt(one[number] + 1.0)
            return two[number]
        if self._name == "adam":
            one[number] = 0.9 * one[number] + 0.1 * gradient
            two[number] = 0.999 * two[number] + 0.001 * gradient**2
            scaled = rate * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            result: Array = scaled * one[number] / (np.sqrt(two[number]) + 1e-8)
            return result
        return rate * gradient
