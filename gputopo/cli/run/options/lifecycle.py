"""What is kept of a run: checkpoints, an exported model, a trace, scalars for TensorBoard."""

import re
from collections.abc import Mapping
from typing import Any

from gputopo.cli.choices import shown
from gputopo.cli.run.offers import Offer, at_least, folder_of
from gputopo.launch.spec.run_spec import Lifecycle
from gputopo.values.errors import UsageError

MOST_TRACED = 100  # a profile of more steps than this does not fit into memory. Ours.

CHECKPOINTS = Offer("--checkpoints", str, "DIR", "Write checkpoints there, and read them from there.")
CHECKPOINT_STEPS = Offer("--checkpoint-steps", int, "N", "Every so many steps. Default: at the end only.")
KEEP_CHECKPOINTS = Offer("--keep-checkpoints", int, "N", "The latest so many. Default: 5.")
RESUME = Offer("--resume", bool, None, "Go on from the latest checkpoint.")
EXPORT = Offer("--export", str, "DIR", "Write the model of a single device there at the end.")
TRACE = Offer("--trace", str, "STEPS", "Profile these steps, such as 5 or 5-7,20, into the run's folder.")
TENSORBOARD = Offer("--tensorboard", str, "DIR", "Write scalars per device there.")
TRAINING_ACCURACY = Offer("--print-training-accuracy", bool, None, "Show top-1 and top-5 of each step.")

OFFERS = (
    CHECKPOINTS,
    CHECKPOINT_STEPS,
    KEEP_CHECKPOINTS,
    RESUME,
    EXPORT,
    TRACE,
    TENSORBOARD,
    TRAINING_ACCURACY,
)


def lifecycle_of(typed: Mapping[str, Any]) -> Lifecycle:
    """Check the options of this theme and give what is kept. Raises UsageError, InputError."""
    keep = at_least(1, KEEP_CHECKPOINTS, typed["keep_checkpoints"])
    return Lifecycle(
        checkpoints=_folder(CHECKPOINTS, typed),
        checkpoint_steps=at_least(1, CHECKPOINT_STEPS, typed["checkpoint_steps"]),
        keep_checkpoints=Lifecycle().keep_checkpoints if keep is None else keep,
        resume=typed["resume"],
        export=_folder(EXPORT, typed),
        trace_steps=() if typed["trace"] is None else parse_steps(typed["trace"]),
        tensorboard=_folder(TENSORBOARD, typed),
        training_accuracy=typed["print_training_accuracy"],
    )


def parse_steps(text: str) -> tuple[int, ...]:
    """Read `5`, `5-7` or `5-7,20` as numbers of counted steps, in order. Raises UsageError."""
    found: set[int] = set()
    for part in text.split(","):
        matched = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
        first, last = (int(matched[1]), int(matched[2] or matched[1])) if matched else (0, 0)
        if not 1 <= first <= last:
            raise UsageError(f"--trace cannot be {shown(text)}", "give steps from 1 on, such as 5 or 5-7,20")
        if last - first >= MOST_TRACED or len(found) + last - first + 1 > MOST_TRACED:
            raise UsageError(f"--trace {shown(text)} asks for too much", f"give {MOST_TRACED} steps at most")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _folder(offer: Offer, typed: Mapping[str, Any]) -> str | None:
    text = typed[offer.name]
    return None if text is None else str(folder_of(offer, text))
