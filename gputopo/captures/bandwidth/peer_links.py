"""Peer access of pairs of GPUs as a CUDA program reports it, in NVML's words."""

from collections.abc import Mapping
from itertools import combinations

from gputopo.values.machine import Contradiction, Link
from gputopo.values.subject import at_link

REFUSED = "NOT_SUPPORTED"  # CUDA reports no reason
_REASON = "CUDA: cannot access peer"


def links(
    access: Mapping[tuple[int, int], set[bool]], source: str
) -> tuple[tuple[Link, ...], dict[str, str], tuple[Contradiction, ...]]:
    """Return the pairs whose access is known, by (from, to), and what of them is missing or contradicts.

    A pair with contradicting reports has no status.
    """
    found: list[Link] = []
    missing: dict[str, str] = {}
    contradictions: list[Contradiction] = []
    for a, b in combinations(sorted({gpu for pair in access for gpu in pair}), 2):
        reported = {pair: access[pair] for pair in ((a, b), (b, a)) if pair in access}
        if not reported:
            continue
        said = set().union(*reported.values())
        if len(said) > 1:
            words = {f"{source}, from GPU {i}": _words(can) for (i, _), can in reported.items()}
            facts = [at_link(a, b, fact) for fact in ("p2p_read", "p2p_write")]
            contradictions += [Contradiction(fact=fact, said=words) for fact in facts]
            missing |= dict.fromkeys(facts, "the two directions, or the list and the matrix, differ")
            found.append(Link(a=a, b=b))
        elif said == {True}:
            found.append(Link(a=a, b=b, p2p_read="OK", p2p_write="OK"))
        else:
            found.append(Link(a=a, b=b, p2p_read=REFUSED, p2p_write=REFUSED, p2p_reason=_REASON))
    return tuple(found), missing, tuple(contradictions)


def _words(can: set[bool]) -> str:
    return " and ".join(sorted("OK" if one else REFUSED for one in can))
