"""What a GPU needs before it can be used again, from the places where `nvidia-smi` tells of it.

Drivers since 570 name the action (`GPU Recovery Action`); those from 530 answer two questions instead
(`GPU Reset Status`: nvml.h calls them deprecated in favour of the action). Any driver may write
`GPU requires reset`, the words of NVML_ERROR_RESET_REQUIRED, in the place of a value.
"""

from typing import Any

ACTION = "recovery_action"
REQUIRED = f"{ACTION}.reset_required"
RECOMMENDED = f"{ACTION}.drain_and_reset_recommended"


def join(values: dict[str, Any], missing: dict[str, str], *, refused: bool) -> None:
    """Make one fact of what was told. `refused`: the card wrote `GPU requires reset` for a value."""
    required, recommended = values.pop(REQUIRED, None), values.pop(RECOMMENDED, None)
    reasons = [reason for fact in (REQUIRED, RECOMMENDED) if (reason := missing.pop(fact, None))]
    action = values.get(ACTION)
    if action in (None, "none"):
        if refused or required:
            action = "reset"
        elif recommended:
            action = "drain and reset"
        elif required is False and recommended is False:
            action = "none"
    if action is not None:
        values[ACTION] = action
        missing.pop(ACTION, None)
    elif reasons:
        missing.setdefault(ACTION, reasons[0])
