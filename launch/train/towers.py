"""Forward and backward pass of one tower over its rows of the batch, on the device in scope."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from gputopo.launch.models.layers import TYPES, TowerRows
from gputopo.launch.models.models import Forward, Model, loss_of
from gputopo.launch.spec.run_spec import Precision, RunSpec
from gputopo.launch.train.inputs.source import InputSource, rows_of
from gputopo.launch.train.loop import ScaleReport
from gputopo.launch.train.placement.devices import HOST

Tensor = Any

# Below 1 a scale would make gradients smaller: the limit of tf_cnn_benchmarks. The upper limit is
# that of NVIDIA Apex's dynamic loss scale; without one a run in float32 would double it to infinity.
MIN_SCALE, MAX_SCALE = 1.0, 2.0**24


class LossScale:
    """The loss scale of a run: fixed, or a variable on the host that follows the gradients.

    `variables`: what a checkpoint has to hold, [scale][its value, good steps, skipped steps]; none if fixed.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._spec: Precision = spec.precision
        self.automatic = spec.precision.auto_loss_scale
        self._own = spec.variable_update == "independent"
        self.variables: list[list[Any]] = []
        if self.automatic:
            count = len(spec.devices) if self._own else 1
            self.variables = [self._create() for _ in range(count)]

    def of(self, tower: int) -> Tensor | None:
        """Return a tower's scale as a float32 scalar on the host; None: nothing is to be scaled."""
        if self.automatic:
            with tf.device(HOST):
                return self.variables[tower if self._own else 0][0].read_value()
        if self._spec.loss_scale == 1.0:
            return None
        with tf.device(HOST):
            return tf.constant(self._spec.loss_scale, tf.float32)

    def decide(self, totals: Sequence[Sequence[Tensor]], variables: Sequence[Sequence[Any]]) -> list[Tensor]:
        """Return for each place whether its step counts: a bool on the host.

        Independent towers decide each for itself; for the others one bad gradient skips the step.
        `totals` and the `variables` that they change: [place][variable].
        """
        flags = [_finite(own, changed) for own, changed in zip(totals, variables, strict=True)]
        if self._own:
            return flags
        with tf.device(HOST):
            return [tf.reduce_all(tf.stack(flags))] * len(flags)

    def settle(self, decisions: Sequence[Tensor], *, first: int = 0) -> list[Any]:
        """Return the ops that halve the scale after a bad step and double it after enough good ones.

        `decisions`: of the places from `first` on, as `decide` returned them.
        """
        ops = []
        with tf.device(HOST):
            # One scale for all: every place has the same decision.
            for (scale, good, skipped), taken in zip(self.variables[first:], decisions, strict=False):
                now = good.read_value() + 1.0
                enough = now >= float(self._spec.loss_scale_steps)
                value = scale.read_value()
                larger = tf.where(enough, tf.minimum(value * 2.0, MAX_SCALE), value)
                smaller = tf.maximum(value * 0.5, MIN_SCALE)
                counted = tf.where(tf.logical_and(taken, tf.logical_not(enough)), now, 0.0)
                ops += [
                    _assign(scale, tf.where(taken, larger, smaller)),
                    _assign(good, counted),
                    _assign(skipped, skipped.read_value() + tf.where(taken, 0.0, 1.0)),
                ]
        return ops

    def report(self) -> ScaleReport | None:
        """Return the scale and the number of skipped steps, after a step; None where nothing is scaled."""
        if self.automatic:
            return ScaleReport(
                tuple(float(scale.numpy()) for scale, _, _ in self.variables),
                tuple(int(skipped.numpy()) for _, _, skipped in self.variables),
            )
        scale = self._spec.loss_scale
        return None if scale == 1.0 else ScaleReport((scale,), (0,))

    def _create(self) -> list[Any]:
        # Counts as float32: exact up to 16 million, and every device has kernels for it.
        starts = (("scale", float(self._spec.loss_scale)), ("good_steps", 0.0), ("skipped_steps", 0.0))
        with tf.device(HOST):
            return [tf.Variable(value, trainable=False, name=f"loss/{name}") for name, value in starts]


def run_if(decision: Tensor, apply: Callable[[], Sequence[Any]]) -> Any:
    """Build ops that run only if the decision (a bool on the host) is True; return one op for them."""

    def change() -> Tensor:
        with tf.control_dependencies(list(apply())), tf.device(HOST):
            return tf.constant(True)

    def leave() -> Tensor:
        with tf.device(HOST):
            return tf.constant(False)

    with tf.device(HOST):
        return tf.cond(decision, change, leave)


def _finite(gradients: Sequence[Tensor], variables: Sequence[Any]) -> Tensor:
    """Return on the host whether every number of the gradients is finite.

    Each device makes one flag of its gradients, so that one number per device is copied.
    """
    by_device: dict[str, list[Tensor]] = {}
    for gradient, variable in zip(gradients, variables, strict=True):
        with tf.device(variable.device):
            flag = tf.reduce_all(tf.math.is_finite(gradient))
        by_device.setdefault(variable.device, []).append(flag)
    flags = []
    for device, of_device in by_device.items():
        with tf.device(device):
            flags.append(tf.reduce_all(tf.stack(of_device)))
    with tf.device(HOST):
        return tf.reduce_all(tf.stack(flags))


def _assign(variable: Any, value: Tensor) -> Any:
    return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


TOP = 5  # guesses of top-5 accuracy


@dataclass(frozen=True)
class TowerInput:
    """Input of a tower in one step: all of it is on its device but the step's `number`.

    `weights` and `state` in the model's order.
    """

    tower: int
    number: Tensor
    weights: list[Tensor]
    state: list[Tensor]
    fed: Sequence[Tensor] = ()  # what the input feeds from outside the graph


@dataclass(frozen=True)
class TowerOutput:
    """Output of a tower: its mean loss, the gradients of its rows, and the state after its batch.

    All float32, and the loss and the gradients without any scale.
    """

    loss: Tensor
    gradients: list[Tensor]
    state: list[Tensor]


class TowerMath:
    """Forward and backward pass of any tower of a run, in the spec's type, compiled by XLA if it asks for it.

    Weights stay float32 up to the layer that uses them: kernels are cast to the type of the images, norms
    take theirs as they are. So gradients come back in float32.
    """

    def __init__(
        self, model: Model, spec: RunSpec, source: InputSource, scale: LossScale | None = None
    ) -> None:
        self._model = model
        self._spec = spec
        self._source = source
        self._scale = scale or LossScale(spec)
        self._rows = rows_of(spec)

    def forward_backward(self, given: TowerInput) -> TowerOutput:
        """Return the loss and its gradients."""
        images, labels = self._source.read(given.tower, given.fed)  # [batch, h, w, c]; [batch]
        scale = self._scale.of(given.tower)
        factors = [] if scale is None else [scale, 1.0 / scale]

        def both(
            number: Tensor,
            images: Tensor,
            labels: Tensor,
            weights: list[Tensor],
            state: list[Tensor],
            factors: list[Tensor],
        ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                passed = self._pass(given.tower, number, weights, state, images)
                loss = tf.reduce_mean(loss_of(self._model, passed.logits, labels))  # of [batch]
                if passed.added is not None:
                    loss += passed.added
                scaled = loss * self._share(given.tower)
                if factors:
                    scaled *= factors[0]
            # A user's model may hold variables that its output does not depend on.
            gradients = tape.gradient(scaled, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            if factors:
                gradients = [gradient * factors[1] for gradient in gradients]
            for gradient, weight in zip(gradients, weights, strict=True):
                if isinstance(gradient, tf.Tensor):  # of a Python function in a user's model it has no shape
                    gradient.set_shape(weight.shape)
            return loss, gradients, passed.state

        loss, gradients, state = self._compiled(both)(
            given.number, images, labels, given.weights, given.state, factors
        )
        return TowerOutput(loss, gradients, state)

    def forward(self, given: TowerInput, *, training: bool = True) -> tuple[Forward, Tensor]:
        """Return the outcome of the forward pass and the labels."""
        images, labels = self._source.read(given.tower, given.fed)

        def once(
            number: Tensor, images: Tensor, weights: list[Tensor], state: list[Tensor]
        ) -> tuple[Tensor, list[Tensor]]:
            passed = self._pass(given.tower, number, weights, state, images, training=training)
            return passed.logits, passed.state

        logits, state = self._compiled(once)(given.number, images, given.weights, given.state)
        return Forward(logits, state), labels

    def _pass(
        self,
        tower: int,
        number: Tensor,
        weights: list[Tensor],
        state: list[Tensor],
        images: Tensor,
        *,
        training: bool = True,
    ) -> Forward:
        images = tf.cast(images, TYPES[self._spec.precision.compute])
        rows = self._rows_at(tower, number)
        return self._model.forward(weights, state, images, rows, self._spec.data_format, training=training)

    def _rows_at(self, tower: int, number: Tensor) -> TowerRows:
        rows = self._rows[tower]
        return replace(rows, stream=replace(rows.stream, step=number, compiled=self._spec.precision.xla))

    def _compiled(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Compile by XLA if the spec asks for it, each tower by itself: XLA compiles for one device."""
        if not self._spec.precision.xla:
            return work
        compiled: Callable[..., Any] = tf.function(work, jit_compile=True, autograph=False)
        return compiled

    def _share(self, tower: int) -> float:
        """Scale of a tower's loss, with which summed gradients are the mean; 1 for independent towers.

        Its share of the examples, so that each counts as much whatever the batch of its tower. A sum is the
        mean times the number of towers.
        """
        if self._spec.variable_update == "independent":
            return 1.0
        times = len(self._rows) if self._spec.grad_reduce == "sum" else 1
        return times * self._rows[tower].batch / self._spec.joint_batch


def hits(model: Model, logits: Tensor, labels: Tensor) -> Tensor:
    """Return two numbers (float32): examples whose label is the first guess, and among the first five.

    `logits` [batch, classes]; `labels` [batch], of which those below 0 stand for no example. Equal logits
    count in the order of their classes, as in tf.math.top_k, so that a constant output is not right; NaN is
    a wrong guess. Plain arithmetic, which GPUs have kernels for.
    """
    if model.classes == 1:  # one number: yes above zero
        right = tf.cast(tf.equal(tf.cast(tf.reshape(logits, (-1,)) > 0, labels.dtype), labels), tf.float32)
        return tf.stack([tf.reduce_sum(right), tf.reduce_sum(right)])
    classes = tf.constant([list(range(model.classes))], labels.dtype)  # [1, classes]
    own = tf.one_hot(labels, model.classes, dtype=logits.dtype)
    of_label = tf.reduce_sum(tf.where(own > 0, logits, tf.zeros_like(logits)), 1, keepdims=True)  # [b, 1]
    better = tf.logical_not(logits <= of_label)
    first = tf.logical_and(tf.equal(logits, of_label), classes < labels[:, None])
    before = tf.reduce_sum(tf.cast(tf.logical_or(better, first), tf.float32), 1)  # [b]
    real = tf.cast(labels >= 0, tf.float32)
    top1 = tf.reduce_sum(real * tf.cast(before < 1, tf.float32))
    return tf.stack([top1, tf.reduce_sum(real * tf.cast(before < TOP, tf.float32))])
