"""How long a warm-up takes: so many steps, or until their times are steady. No TensorFlow here."""

from collections.abc import Sequence

from gputopo.launch.spec.run_spec import RunSpec
from gputopo.runs.steadiness import MAX_STEPS, steady_from

_LOOK_EVERY = 10  # steps of a warm-up between two looks for a steady state: a look takes a few ms


def longest_warmup(spec: RunSpec) -> int:
    """Give how many steps a warm-up takes at most; one that is detected may be over before."""
    least = spec.num_warmup_batches
    return max(least, MAX_STEPS) if spec.detect_warmup else least


def is_warm(spec: RunSpec, seconds: Sequence[float]) -> bool:
    """Whether a warm-up whose steps took these seconds, in order, is over: so many steps, or steady ones."""
    done = len(seconds)
    if done < spec.num_warmup_batches:
        return False
    if done >= longest_warmup(spec):
        return True
    return done % _LOOK_EVERY == 0 and steady_from(seconds) is not None
