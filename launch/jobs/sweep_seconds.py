"""How long the cells of a sweep take, predicted before they run."""

# Starting Python and TensorFlow, building and tracing, until a cell has run: median of the cells of `quick`
# on two cores.
START_S = 6.0


def predicted_s(
    *,
    images_per_sec: float | None,
    joint_batch: int,
    warmup: int,
    counted: int | None,
    counted_s: float | None,
) -> float | None:
    """Return the seconds of a cell including its start, or None if its speed is unknown.

    `images_per_sec`: predicted, for all devices together. `counted`: maximum number of counted steps.
    `counted_s`: maximum counted seconds.
    """
    if images_per_sec is None or not images_per_sec > 0:
        return None if counted_s is None else START_S + counted_s
    step_s = joint_batch / images_per_sec
    limits = [] if counted is None else [counted * step_s]
    limits += [] if counted_s is None else [max(counted_s, step_s)]
    return None if not limits else START_S + warmup * step_s + min(limits)
