"""Optimizers as ops on one variable and its slots: a slot lies on its variable's device.

TensorFlow's own training ops are used: one op a variable, in place, with a kernel on CPU and GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from gputopo.launch.spec.run_spec import Optimization

Tensor = Any
Variable = Any


@dataclass(frozen=True)
class Change:
    """What changes one variable in one step: its total gradient and the learning rate.

    `slots` are the variable's own, `scalars` the numbers that it shares, as they are before the step.
    """

    variable: Variable
    slots: Sequence[Variable]
    scalars: Sequence[Tensor]
    gradient: Tensor
    rate: Tensor


class Optimizer(Protocol):
    """How one variable takes its step."""

    @property
    def slots(self) -> Sequence[tuple[str, float]]:
        """Name and first value of each slot that a variable has beside it, of the variable's shape."""

    @property
    def scalars(self) -> Sequence[tuple[str, float]]:
        """Name and first value of each number that all variables of one device share."""

    def apply(self, change: Change) -> Any:
        """Return the op that changes the variable (and its slots) in place."""

    def advance(self, scalars: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the shared numbers of the next step."""


class _NoScalars:
    """An optimizer whose variables share nothing."""

    scalars: Sequence[tuple[str, float]] = ()

    def advance(self, scalars: Sequence[Tensor]) -> Sequence[Tensor]:
        """Nothing to advance."""
        return ()


@dataclass(frozen=True)
class GradientDescent(_NoScalars):
    """variable -= rate x gradient."""

    slots: Sequence[tuple[str, float]] = ()

    def apply(self, change: Change) -> Any:
        """Take the step."""
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=change.variable.handle, alpha=change.rate, delta=change.gradient
        )


@dataclass(frozen=True)
class Momentum(_NoScalars):
    """moving = momentum x moving + gradient; variable -= rate x moving (B. Polyak, 1964).

    With `nesterov`: variable -= rate x (gradient + momentum x moving).
    """

    momentum: float
    nesterov: bool = False
    slots: Sequence[tuple[str, float]] = (("momentum", 0.0),)

    def apply(self, change: Change) -> Any:
        """Take the step."""
        return tf.raw_ops.ResourceApplyMomentum(
            var=change.variable.handle,
            accum=change.slots[0].handle,
            lr=change.rate,
            grad=change.gradient,
            momentum=self.momentum,
            use_nesterov=self.nesterov,
        )


@dataclass(frozen=True)
class RmsProp(_NoScalars):
    """square = decay x square + (1 - decay) x gradient^2;
    moving = momentum x moving + rate x gradient / sqrt(square + epsilon); variable -= moving
    (T. Tieleman, G. Hinton, 2012).
    """

    decay: float
    momentum: float
    epsilon: float
    slots: Sequence[tuple[str, float]] = (("square", 1.0), ("momentum", 0.0))

    def apply(self, change: Change) -> Any:
        """Take the step."""
        return tf.raw_ops.ResourceApplyRMSProp(
            var=change.variable.handle,
            ms=change.slots[0].handle,
            mom=change.slots[1].handle,
            lr=change.rate,
            rho=self.decay,
            momentum=self.momentum,
            epsilon=self.epsilon,
            grad=change.gradient,
        )


@dataclass(frozen=True)
class Adam:
    """first = beta1 x first + (1 - beta1) x gradient; second = beta2 x second + (1 - beta2) x gradient^2;
    variable -= rate x sqrt(1 - beta2^t) / (1 - beta1^t) x first / (sqrt(second) + epsilon), t = 1, 2, ...
    (D. Kingma, J. Ba, 2014: the form before their section 2.1, in which epsilon is not corrected).
    """

    beta1: float
    beta2: float
    epsilon: float
    slots: Sequence[tuple[str, float]] = (("first", 0.0), ("second", 0.0))

    @property
    def scalars(self) -> Sequence[tuple[str, float]]:
        """The powers that the next step needs: beta1^t and beta2^t, from t = 1 on."""
        return (("beta1_power", self.beta1), ("beta2_power", self.beta2))

    def apply(self, change: Change) -> Any:
        """Take the step."""
        return tf.raw_ops.ResourceApplyAdam(
            var=change.variable.handle,
            m=change.slots[0].handle,
            v=change.slots[1].handle,
            beta1_power=change.scalars[0],
            beta2_power=change.scalars[1],
            lr=change.rate,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            grad=change.gradient,
        )

    def advance(self, scalars: Sequence[Tensor]) -> Sequence[Tensor]:
        """Raise both powers by one."""
        return (scalars[0] * self.beta1, scalars[1] * self.beta2)


def optimizer_of(spec: Optimization) -> Optimizer:
    """Return the optimizer that a spec names."""
    if spec.optimizer == "momentum":
        return Momentum(spec.momentum, spec.nesterov)
    if spec.optimizer == "rmsprop":
        return RmsProp(spec.rmsprop_decay, spec.rmsprop_momentum, spec.rmsprop_epsilon)
    if spec.optimizer == "adam":
        return Adam(spec.adam_beta1, spec.adam_beta2, spec.adam_epsilon)
    return GradientDescent()
