"""The update for every placement: from total gradients to changed variables. Builds ops; nothing runs here.

The order: the totals are gradients without a loss scale (see `towers`); weight decay is added; every entry is
clipped; all gradients of a place are clipped together by their norm; the optimizer takes its step.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tensorflow as tf

from gputopo.launch.train.loss_scale import LossScale, run_if
from gputopo.launch.train.placement.devices import HOST
from gputopo.launch.train.stepper import VariableSets
from gputopo.values.run.spec import Optimization, Schedule

Tensor = Any


@dataclass(frozen=True)
class Optimizer:
    """One of TensorFlow's own training ops: one op for each variable, in place, with CPU and GPU kernels.

    `slots`: the op's arguments that it keeps for each variable on its device, with initial values. `powers`:
    the op's arguments that are a number to the power of the update's number, from 1. `rate`, `gradient`: the
    names of the op's arguments.
    """

    op: Callable[..., Any]
    rate: str = "lr"
    gradient: str = "grad"
    slots: Mapping[str, float] = field(default_factory=dict)
    powers: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def apply(
        self,
        variable: Any,
        slots: Sequence[Any],
        powers: Mapping[str, Tensor],
        gradient: Tensor,
        rate: Tensor,
    ) -> Any:
        """Return the op that changes the variable and its slots."""
        handles = {name: slot.handle for name, slot in zip(self.slots, slots, strict=True)}
        given = {self.rate: rate, self.gradient: gradient, **handles, **powers, **self.settings}
        return self.op(var=variable.handle, **given)


# The defaults of tf_cnn_benchmarks.
RMSPROP = {"rho": 0.9, "momentum": 0.9, "epsilon": 1.0}
ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}  # in the order of Keras


def optimizer_of(spec: Optimization) -> Optimizer:
    """Return the optimizer of a spec.

    sgd: variable -= rate x gradient.
    momentum (B. Polyak, 1964): moving = momentum x moving + gradient; variable -= rate x moving; Nesterov's:
    variable -= rate x (gradient + momentum x moving).
    rmsprop (T. Tieleman, G. Hinton, 2012): square = decay x square + (1 - decay) x gradient^2;
    moving = momentum x moving + rate x gradient / sqrt(square + epsilon); variable -= moving.
    adam (D. Kingma, J. Ba, 2014, in the form before their section 2.1, in which epsilon is not corrected):
    first = beta1 x first + (1 - beta1) x gradient; second = beta2 x second + (1 - beta2) x gradient^2;
    variable -= rate x sqrt(1 - beta2^t) / (1 - beta1^t) x first / (sqrt(second) + epsilon), t = 1, 2, ...
    """
    ops = tf.raw_ops
    if spec.optimizer == "momentum":
        settings = {"momentum": spec.momentum, "use_nesterov": spec.nesterov}
        return Optimizer(ops.ResourceApplyMomentum, slots={"accum": 0.0}, settings=settings)
    if spec.optimizer == "rmsprop":
        return Optimizer(
            ops.ResourceApplyRMSProp,
            slots={"ms": 1.0, "mom": 0.0},
            settings=RMSPROP,
        )
    if spec.optimizer == "adam":
        betas = {"beta1": ADAM["beta1"], "beta2": ADAM["beta2"]}
        return Optimizer(
            ops.ResourceApplyAdam,
            slots={"m": 0.0, "v": 0.0},
            powers={f"{name}_power": beta for name, beta in betas.items()},
            settings=ADAM,
        )
    return Optimizer(ops.ResourceApplyGradientDescent, rate="alpha", gradient="delta")


class Updater:
    """Slots of every variable of a placement, and the ops of one update.

    `slots`: [place][variable][slot], each on its variable's device. `scale`: with an automatic loss scale, a
    step with non-finite gradients changes only the scale. `independent`: each place is clipped by the norm of
    its own gradients.
    """

    def __init__(
        self,
        variables: VariableSets,
        spec: Optimization,
        base_rate: float,
        scale: LossScale | None = None,
        *,
        independent: bool = False,
    ) -> None:
        self._variables = variables
        self._independent = independent
        self._spec = spec
        self._base_rate = base_rate
        self._scale = scale if scale is not None and scale.automatic else None
        self._optimizer = optimizer_of(spec)
        clips = (spec.gradient_clip, spec.gradient_clip_norm)
        self._changes_gradients = bool(spec.weight_decay) or any(limit is not None for limit in clips)
        self._decisions: dict[int, Tensor] = {}  # by place that was updated
        self.slots = [[self._create_slots(variable) for variable in place] for place in variables.places]

    def update(
        self,
        totals: Sequence[Sequence[Tensor]],
        number: Tensor,
        *,
        after: Sequence[Tensor] = (),
        early: bool = False,
        first: int = 0,
        part: float = 1.0,
        update: Tensor | None = None,
    ) -> list[Any]:
        """Return the ops that change the places from `first` on by their totals ([place][variable]).

        `number`: the step's number. `update`: the number of this update, from 0; None: the step's number.
        `part`: the fraction of a step's change that this call applies; weight decay is multiplied by it.

        The changes wait for `after`, the end of the towers, so that they are in place: TensorFlow would copy
        a weight that is still being read, and fragment the memory (230 MiB more in ResNet-50 on a CPU).
        `early`: kernels of dense layers do not wait, unless decay or clipping changes their gradients.
        Nothing reads them once the preceding layer has its gradients. In AlexNet and VGG they are most of the
        variables, and their gradients would be held during the convolutions' backward pass.
        """
        rate = learning_rate(self._spec.schedule, self._base_rate, number)
        update = number if update is None else update
        early = early and not self._changes_gradients
        places = range(first, first + len(totals))
        with tf.control_dependencies(list(after)):
            ready = self._prepared(places, totals, self._spec.weight_decay * part)
            if self._scale is None:
                return [
                    op
                    for place, gradients in zip(places, ready, strict=True)
                    for op in self.update_place(place, gradients, rate, update, early=early)
                ]
            decisions = self._scale.decide(totals, [self._variables.places[place] for place in places])
            self._decisions |= zip(places, decisions, strict=True)
            ops = [
                run_if(decision, partial(self.update_place, place, gradients, rate, update))
                for place, gradients, decision in zip(places, ready, decisions, strict=True)
            ]
            return ops + self._scale.settle(decisions, first=first)

    def update_place(
        self, place: int, gradients: Sequence[Tensor], rate: Tensor, update: Tensor, *, early: bool = False
    ) -> list[Any]:
        """Return the ops that change the variables of one place by gradients that are decayed and clipped.

        `early`: change the kernels of dense layers without waiting for the towers.
        """
        powers = {}
        if self._optimizer.powers:
            with tf.device(HOST):
                applied = tf.cast(update, tf.float64) + 1.0
                if self._scale is not None:
                    applied -= tf.cast(self._scale.skipped(place), tf.float64)
                powers = {
                    name: tf.cast(tf.pow(tf.constant(base, tf.float64), applied), tf.float32)
                    for name, base in self._optimizer.powers.items()
                }
        ops = []
        for number, variable in enumerate(self._variables.places[place]):
            slots, gradient = self.slots[place][number], gradients[number]
            at_once = early and number and len(variable.shape) == 2
            with tf.device(variable.device), _after([gradients[number - 1]] if at_once else None):
                ops.append(self._optimizer.apply(variable, slots, powers, gradient, rate))
        return ops

    def accepted(self, states: Sequence[Sequence[Tensor]]) -> Sequence[Sequence[Tensor]]:
        """Return the statistics to store, given the towers' new ones ([tower][number]); call `update` first.

        If the step is skipped, they are the old statistics.
        """
        if self._scale is None:
            return states
        accepted = []
        for place, (variables, new) in enumerate(zip(self._variables.states, states, strict=False)):
            chosen = []
            for variable, value in zip(variables, new, strict=True):
                with tf.device(variable.device):
                    chosen.append(tf.where(self._decisions[place], value, variable.read_value()))
            accepted.append(chosen)
        return accepted

    def _create_slots(self, variable: Any) -> list[Any]:
        with tf.device(variable.device):
            return [
                tf.Variable(tf.fill(variable.shape, start), trainable=False, name=f"{name}/slot")
                for name, start in self._optimizer.slots.items()
            ]

    def _prepared(
        self, places: Sequence[int], totals: Sequence[Sequence[Tensor]], decay: float
    ) -> list[list[Tensor]]:
        """Return the gradients with weight decay, clipped: [place][variable].

        Copies that must stay equal use the norm of the first copy, because sums of the same numbers differ in
        their last bits from device to device.
        """
        factor: Tensor | None = None
        ready = []
        for place, gradients in zip(places, totals, strict=True):
            variables = self._variables.places[place]
            sums = list(gradients)
            for number, variable in enumerate(variables if decay else ()):
                with tf.device(variable.device), tf.control_dependencies([sums[number]]):  # else long before
                    sums[number] += decay * variable.read_value()
            if self._spec.gradient_clip is not None:
                limit = self._spec.gradient_clip
                sums = _each(variables, sums, lambda x: tf.clip_by_value(x, -limit, limit))  # noqa: B023
            if self._spec.gradient_clip_norm is not None:
                if factor is None or self._independent:
                    norm = self._spec.gradient_clip_norm
                    squares = _each(variables, sums, lambda x: tf.reduce_sum(tf.square(x)))
                    with tf.device(HOST):
                        factor = norm / tf.maximum(tf.sqrt(tf.add_n(squares)), norm)
                sums = _each(variables, sums, lambda x: x * factor)  # noqa: B023
            ready.append(sums)
        return ready


@contextmanager
def _after(tensors: Sequence[Tensor] | None) -> Iterator[None]:
    """Let ops wait only for these tensors; None: for the tensors of the enclosing scopes."""
    if tensors is None:
        yield
        return
    with tf.control_dependencies(None), tf.control_dependencies(list(tensors)):
        yield


def learning_rate(schedule: Schedule, base: float, number: Tensor) -> Tensor:
    """Return the learning rate of step `number` (int64, from 0) on the host: see `Schedule`."""
    with tf.device(HOST):
        step = tf.cast(number, tf.float64)  # float32 is not exact above 16 million
        factor = _factor(schedule, step)
        if schedule.warmup_steps:
            factor *= tf.minimum(step / schedule.warmup_steps, 1.0)
        return tf.cast(base * factor, tf.float32)


def _factor(schedule: Schedule, step: Tensor) -> Tensor:
    if schedule.kind == "piecewise":
        passed = tf.reduce_sum(tf.cast(step >= tf.constant(schedule.boundaries, tf.float64), tf.int32))
        return tf.gather(tf.constant(schedule.factors, tf.float64), passed)
    if schedule.kind == "exponential":
        return tf.pow(tf.constant(schedule.decay, tf.float64), tf.floor(step / schedule.decay_steps))
    if schedule.kind == "cosine":
        done = tf.minimum(step / schedule.decay_steps, 1.0)
        return 0.5 * (1.0 + tf.cos(math.pi * done))
    return tf.constant(1.0, tf.float64)


def _each(
    variables: Sequence[Any], tensors: Sequence[Tensor], change: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Apply `change` to each tensor on the device of its variable."""
    changed = []
    for variable, tensor in zip(variables, tensors, strict=True):
        with tf.device(variable.device):
            changed.append(change(tensor))
    return changed
