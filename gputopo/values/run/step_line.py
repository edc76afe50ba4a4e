"""The predicted step of a plan's choice in time: what its links carry, when gradients are through."""

import msgspec


class ResourceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a resource carries in a step, or each of several that carry the same (`count`).

    10^6 bytes of weights and of gradients; what forward waits for these weights, what these gradients take;
    when the last of them is through. Milliseconds, the last from the start of the step.
    """

    resource: str
    count: int = 1
    weights_mb: float
    wait_ms: float
    gradients_mb: float
    busy_ms: float
    through_ms: float


class BlockGradients(msgspec.Struct, frozen=True, kw_only=True):
    """The gradients of a block: 10^6 bytes, when they are ready and through, in ms from the step's start."""

    block: str
    mb: float
    ready_ms: float
    through_ms: float


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """A step, part after part. `resources`: the slowest first; `blocks`: in the order of backward.

    `gradients_ms`: until the gradients are through, after backward has ended.
    """

    weights_ms: float
    forward_ms: float
    backward_ms: float
    gradients_ms: float
    variables_ms: float
    resources: tuple[ResourceLoad, ...]
    blocks: tuple[BlockGradients, ...]

    @property
    def backward_begins_ms(self) -> float:
        """From the start of the step."""
        return self.weights_ms + self.forward_ms

    @property
    def backward_ends_ms(self) -> float:
        """From the start of the step."""
        return self.backward_begins_ms + self.backward_ms
