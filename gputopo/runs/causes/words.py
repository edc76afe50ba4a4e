"""The sentences of causes. Pure."""

import msgspec

from gputopo.values.run.verdict import Cause, Causes


def said(found: Causes, percent: float, covered: bool) -> Causes:
    """Return the causes with their sentence. `percent`: the gap. `covered`: they are the cause."""
    return msgspec.structs.replace(found, says=_sentence(found, percent, covered))


def _sentence(found: Causes, percent: float, covered: bool) -> str:
    if not found.checked:
        return "Cause: not checked, for lack of samples"
    if not found.found:
        return "Cause: not explained" + _not_checked(found)
    causes = " and ".join(f"{one.says}, which explains {_range(one)}" for one in found.found)
    of = f"{causes} of {_number(percent)} %"
    if covered:
        sure = all(one.how != "bounded" for one in found.found)
        return f"{'Cause' if sure else 'Possible cause'}: {of}"
    return f"Partly: {of}; {_number(found.unexplained_percent)} % unexplained{_not_checked(found)}"


def _range(cause: Cause) -> str:
    if cause.how == "bounded":
        return f"at most {_number(cause.percent_high)} %"
    return f"{_number(cause.percent)} % ({_number(cause.percent_low)} to {_number(cause.percent_high)})"


def _not_checked(found: Causes) -> str:
    return f" (not checked: {', '.join(found.not_checked)})" if found.not_checked else ""


def _number(percent: float) -> str:
    return f"{percent:.0f}" if percent >= 10 else f"{percent:.1f}"
