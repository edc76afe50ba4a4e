"""Optimizers as ops on one variable and its slots: a slot lies on its variable's device.

TensorFlow's own training ops are used: one op a variable, in place, with a kernel on CPU and GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from gputopo.launch.spec import Optimization

Tensor = Any
Variable = Any


class Optimizer(Protocol):
    """How one variable takes its step."""

    @property
    def slots(self) -> Sequence[tuple[str, float]]:
        """Name and first value of each slot that a variable has beside it."""

    def apply(self, variable: Variable, slots: Sequence[Variable], gradient: Tensor, rate: Tensor) -> Any:
        """Change the variable (and its slots) in place; give the op. `rate` is a scalar."""


@dataclass(frozen=True)
class GradientDescent:
    """variable -= rate x gradient."""

    slots: Sequence[tuple[str, float]] = ()

    def apply(self, variable: Variable, slots: Sequence[Variable], gradient: Tensor, rate: Tensor) -> Any:
        """Take the step."""
        return tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


@dataclass(frozen=True)
class Momentum:
    """moving = momentum x moving + gradient; variable -= rate x moving (B. Polyak, 1964).

    With `nesterov`: variable -= rate x (gradient + momentum x moving).
    """

    momentum: float
    nesterov: bool = False
    slots: Sequence[tuple[str, float]] = (("momentum", 0.0),)

    def apply(self, variable: Variable, slots: Sequence[Variable], gradient: Tensor, rate: Tensor) -> Any:
        """Take the step."""
        return tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=slots[0].handle,
            lr=rate,
            grad=gradient,
            momentum=self.momentum,
            use_nesterov=self.nesterov,
        )


@dataclass(frozen=True)
class RmsProp:
    """square = decay x square + (1 - decay) x gradient^2;
    moving = momentum x moving + rate x gradient / sqrt(square + epsilon); variable -= moving
    (T. Tieleman, G. Hinton, 2012).
    """

    decay: float
    momentum: float
    epsilon: float
    slots: Sequence[tuple[str, float]] = (("square", 1.0), ("momentum", 0.0))

    def apply(self, variable: Variable, slots: Sequence[Variable], gradient: Tensor, rate: Tensor) -> Any:
        """Take the step."""
        return tf.raw_ops.ResourceApplyRMSProp(
            var=variable.handle,
            ms=slots[0].handle,
            mom=slots[1].handle,
            lr=rate,
            rho=self.decay,
            momentum=self.momentum,
            epsilon=self.epsilon,
            grad=gradient,
        )


@dataclass(frozen=True)
class Adam:
    """Adam (D. Kingma, J. Ba, 2014). The powers of the betas are scalars beside each variable."""

    beta1: float
    beta2: float
    epsilon: float

    @property
    def slots(self) -> Sequence[tuple[str, float]]:
        """First and second moment. The scalar powers are not of the variable's shape: `scalars`."""
        return (("first", 0.0), ("second", 0.0))

    @property
    def scalars(self) -> Sequence[tuple[str, float]]:
        """The powers that the next step needs: beta1^t and beta2^t, from t = 1 on."""
        return (("beta1_power", self.beta1), ("beta2_power", self.beta2))

    def apply(self, variable: Variable, slots: Sequence[Variable], gradient: Tensor, rate: Tensor) -> Any:
        """Take the step; `slots` are the two moments and then the two scalars."""
        first, second, power1, power2 = slots
        before1, before2 = power1.read_value(), power2.read_value()
        step = tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=first.handle,
            v=second.handle,
            beta1_power=before1,
            beta2_power=before2,
            lr=rate,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            grad=gradient,
        )
        with tf.control_dependencies([step]):
            return tf.group(
                tf.raw_ops.AssignVariableOp(resource=power1.handle, value=before1 * self.beta1),
                tf.raw_ops.AssignVariableOp(resource=power2.handle, value=before2 * self.beta2),
            )


def optimizer_of(spec: Optimization) -> Optimizer:
    """Give the optimizer that a spec names."""
    if spec.optimizer == "momentum":
        return Momentum(spec.momentum, spec.nesterov)
    if spec.optimizer == "rmsprop":
        return RmsProp(spec.rmsprop_decay, spec.rmsprop_momentum, spec.rmsprop_epsilon)
    if spec.optimizer == "adam":
        return Adam(spec.adam_beta1, spec.adam_beta2, spec.adam_epsilon)
    return GradientDescent()


def scalars_of(optimizer: Optimizer) -> Sequence[tuple[str, float]]:
    """Give name and first value of the scalars that a variable has beside its slots."""
    return optimizer.scalars if isinstance(optimizer, Adam) else ()
