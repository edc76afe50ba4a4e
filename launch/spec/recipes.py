"""The recipe of a model's training: its learning rate and schedule."""

from gputopo.launch.spec.model_names import defaults, read_model_name
from gputopo.values.run.spec import Schedule
from gputopo.workload import require_workload

# Training images of ILSVRC 2012 and of CIFAR-10.
IMAGENET_EXAMPLES = 1_281_167
CIFAR10_EXAMPLES = 50_000
# The learning rate of the ImageNet ResNets is for a batch of 256 (P. Goyal et al., 2017: linear scaling, with
# a warm-up of five epochs for large batches).
RESNET_BATCH = 256
RESNET_WARMUP_EPOCHS = 5
RESNET_EPOCHS = (30, 60, 80, 90)
CIFAR_RESNET_EPOCHS = (82, 123, 300)
CIFAR_RESNET_FACTORS = (1.0, 0.1, 0.01, 0.002)
DENSENET_EPOCHS = (150, 225, 300)
ALEXNET_DECAY_EPOCHS = 100

Recipe = tuple[float, Schedule]
"""Learning rate (`RunSpec.learning_rate`) and its schedule."""


def scaled_rate(rate: float, batch: int, of_batch: int) -> float:
    """Return the rate for a batch by linear scaling. `rate`: for a batch of `of_batch`."""
    return rate * batch / of_batch


def model_recipe(model: str, batch: int, *, added: int = 1) -> Recipe:
    """Return the recipe of a model: a constant rate by default.

    `batch`: examples for one change of the variables; for all devices, unless they train independently.
    `added`: number of towers whose gradients are summed, not averaged. The ResNets for ImageNet divide their
    rate by it. Raises UsageError for an unknown model.
    """
    *_, rate = defaults(model)
    asked = read_model_name(model)
    if asked.kind != "network":
        return rate, Schedule()
    name, data = asked.attribute, require_workload(asked.attribute).data_name
    if name.startswith("resnet") and data == "imagenet":
        per_epoch = IMAGENET_EXAMPLES / batch
        schedule = _stairs(
            tuple(int(per_epoch * epoch) for epoch in RESNET_EPOCHS),
            _tenths(len(RESNET_EPOCHS) + 1),
            warmup_steps=int(per_epoch * RESNET_WARMUP_EPOCHS),
        )
        return scaled_rate(rate / added, batch, RESNET_BATCH), schedule
    # If the batch is larger than the data set, an epoch is one step.
    per_epoch = max(CIFAR10_EXAMPLES // batch, 1)
    if name.startswith("resnet"):
        return rate, _stairs(tuple(per_epoch * epoch for epoch in CIFAR_RESNET_EPOCHS), CIFAR_RESNET_FACTORS)
    if name.startswith("densenet"):
        last = tuple(per_epoch * epoch for epoch in DENSENET_EPOCHS)
        return rate, _stairs(last, _tenths(len(last) + 1))
    if name == "alexnet-cifar10":
        steps = max(ALEXNET_DECAY_EPOCHS * CIFAR10_EXAMPLES // batch, 1)
        return rate, Schedule(kind="exponential", decay=0.1, decay_steps=steps)
    return rate, Schedule()


def _stairs(last: tuple[int, ...], factors: tuple[float, ...], warmup_steps: int = 0) -> Schedule:
    """Return a piecewise schedule. `last`: last step of each factor as in tf_cnn_benchmarks, hence + 1."""
    boundaries = tuple(step + 1 for step in last)
    return Schedule(kind="piecewise", boundaries=boundaries, factors=factors, warmup_steps=warmup_steps)


def _tenths(count: int) -> tuple[float, ...]:
    return tuple(float(f"1e-{power}") for power in range(count))
