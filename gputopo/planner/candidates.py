"""The candidates of a plan: their numbers, and why they were chosen."""

from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from gputopo.planner.chooser import NO_SHARE, Chooser, PlacedGpus
from gputopo.planner.ranges import is_number, range_factor
from gputopo.planner.reasons import (
    UNPREDICTED,
    avoided_reason,
    farthest_words,
    model_reasons,
    reduction_reasons,
    troubles_in_words,
    unknown_facts,
)
from gputopo.planner.request import batch_reasons, gpus_in_words
from gputopo.planner.selection import LISTED
from gputopo.prediction import SAME_RUN
from gputopo.values.run.batches import plain
from gputopo.values.run.plan import (
    ALL,
    SURE_MARGIN,
    Candidate,
    GpuCount,
    Prediction,
    rounded_ms,
    runners_up,
)

_WITH_REASONS = 1000  # candidates that get reasons if all are listed
COMPUTE = "compute"  # what limits a step


class Candidates:
    """The candidates for a request."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self.decision = chooser.decide(chooser.best.gpus)
        self.warnings = cache(self._warnings)

    def best(self, keep: int | None) -> tuple[Candidate, ...]:
        """Return the best candidates, at most `keep`. ALL: also placements that need a request."""
        count = LISTED if keep is None else max(keep, 1)
        first, *others = self._chooser.every(count) if keep == ALL else self._chooser.listed(count)
        reasons = tuple(dict.fromkeys(self._reasons(first)))
        choice = msgspec.structs.replace(self._candidate(first), reasons=reasons)
        rest = []
        for rank, placed in enumerate(others):
            short = (self._short_reason(placed),) if rank < _WITH_REASONS else ()
            rest.append(msgspec.structs.replace(self._candidate(placed), reasons=short))
        if self.decision.speeds:  # measured speeds come before predicted ones
            rest.sort(key=lambda candidate: (candidate.gpus != choice.gpus, candidate.evidence != "measured"))
        evidence = self.decision.evidence
        if evidence == "measured" and choice.evidence == "predicted":
            evidence = "predicted"  # the speed is predicted: only other GPUs or another batch were measured
        return (msgspec.structs.replace(choice, evidence=evidence), *rest)

    def prediction(self, candidates: Sequence[Candidate], fewer: GpuCount | None) -> Prediction | None:
        """Return what the prediction is based on; None if the choice is not predicted.

        `fewer`: the fastest plan of fewer GPUs.
        """
        choice, basis = candidates[0], self._chooser.basis
        if choice.images_per_sec is None:
            return None
        return Prediction(
            program=basis.program.name,
            batch_size=basis.batch,
            single_gpu_images_per_sec={
                gpu: round(basis.speeds[gpu].images_per_sec, 2) for gpu in self._chooser.pool
            },
            single_gpu_source=" + ".join(dict.fromkeys(basis.speeds[gpu].source for gpu in choice.gpus)),
            margin=margin_of(candidates),
            learned=basis.learned,
            fewer=fewer,
        )

    def _candidate(self, placed: PlacedGpus) -> Candidate:
        """Return a candidate with its measured speed, or the predicted one if it was not measured."""
        chooser, (gpus, alike), placing, step = self._chooser, *placed
        batches = chooser.batches(gpus)
        candidate = Candidate(
            gpus=gpus,
            **placing._asdict(),
            alike=alike,
            batch_sizes=batches if isinstance(plain(batches or (0,)), tuple) else (),
        )
        if step is None:
            return candidate
        basis, examples = chooser.basis, sum(batches)
        speeds = [basis.speeds[gpu] for gpu in gpus]
        measured = self.decision.speeds.get(placing) if placed.gpu_set == chooser.best else None
        if measured is None:
            exchanges = len(gpus) > 1 and placing.traffic != "none"
            learned = basis.learned is not None and basis.learned.step_factor != 1.0
            factor = range_factor(speeds, exchanges=exchanges, measured=learned)
            low, high, shown = 1 / factor, factor, is_number(factor)
        else:
            step = step.lasting(examples / measured)
            low, high, shown = 1 - SAME_RUN, 1 + SAME_RUN, True
        speed, links = examples / step.step_s, chooser.predictor.links(step, placing)
        exposed = {"weights": step.weights_s, "gradients": step.gradients_s, "variables": step.variables_s}
        longest = max(exposed, key=exposed.__getitem__)
        limited_by = "cost of variables" if longest == "variables" else links.get(longest, longest)
        if step.step_s - step.compute_s < SURE_MARGIN * step.step_s:
            slowest = self._slowest(gpus)
            limited_by = COMPUTE if slowest is None else f"{COMPUTE} of GPU {slowest}"
        return msgspec.structs.replace(
            candidate,
            evidence="predicted" if measured is None else "measured",
            images_per_sec=round(speed, 2),
            images_per_sec_low=round(speed * low, 2) if shown else None,
            images_per_sec_high=round(speed * high, 2) if shown else None,
            speedup=round(speed / max(single.images_per_sec for single in speeds), 3),
            step_ms=rounded_ms(step.step_s),
            compute_ms=rounded_ms(step.compute_s),
            exposed_ms={part: rounded_ms(seconds) for part, seconds in exposed.items()},
            links=links,
            limited_by=limited_by,
        )

    def _slowest(self, gpus: Sequence[int]) -> int | None:
        """Return the GPU that the others wait for; None if all are equally fast."""
        seconds = self._chooser.seconds_alone(gpus)
        slowest = max(gpus, key=seconds.__getitem__)
        return slowest if min(seconds.values()) < (1 - NO_SHARE) * seconds[slowest] else None

    def _reasons(self, placed: PlacedGpus) -> Iterator[str]:
        chooser, gpus = self._chooser, placed.gpu_set.gpus
        yield from self.decision.reasons
        yield from chooser.distance_reasons(gpus)
        yield from self._why_this_set()
        yield from self._peer_access(placed)
        if chooser.predicts and len(gpus) > 1 and (unknown := unknown_facts(chooser.machine, chooser.paths)):
            yield f"not known: {'; '.join(unknown)}"
        yield from batch_reasons(
            chooser.request, chooser.batches(gpus) if chooser.predicts else (), known=chooser.predicts
        )
        yield from self._reasons_of_request(gpus)
        yield from reduction_reasons(chooser.machine, gpus, placed.placing.all_reduce)
        if chooser.missing:
            yield f"{UNPREDICTED}: {chooser.missing}"

    def _peer_access(self, placed: PlacedGpus) -> Iterator[str]:
        """Yield a note if the GPUs have no peer access, with the share of a step that the exchange takes."""
        chooser, gpus = self._chooser, placed.gpu_set.gpus
        if len(gpus) < 2 or chooser.paths.has_peer_access(gpus) or placed.placing.traffic == "none":
            return
        cost = ""
        if placed.step is not None:
            share = 1 - placed.step.compute_s / placed.step.step_s
            cost = f"; the exchange takes {share:.0%} of a step"
        yield f"no peer access between these GPUs: copies go through host memory{cost}"

    def _warnings(self, chosen: tuple[int, ...]) -> list[str]:
        chooser = self._chooser
        said = []
        taken = sorted(chooser.troubles.keys() & set(chosen))
        if chooser.exact and taken:
            return [f"{troubles_in_words(chooser.troubles, taken)}: used because --gpus lists it"]
        avoided, best = self._avoided_for(chosen)
        if avoided:
            said.append(avoided_reason(chooser.troubles, avoided, chosen, self._difference(chosen, best)))
        if chooser.required in chooser.troubles:
            words = troubles_in_words(chooser.troubles, [chooser.required])
            said.append(f"{words}: used because --ps gpu:{chooser.required} places the variables on it")
        others = [index for index in taken if index != chooser.required]
        if others:
            said.append(f"{troubles_in_words(chooser.troubles, others)}: taken, as {chooser.idle_words()}")
        return said

    def _difference(self, chosen: Sequence[int], best: Sequence[int]) -> str:
        """Return how the chosen GPUs are worse than others of the same number; "" if they are not."""
        chooser = self._chooser
        if chooser.predicts:
            now, then = chooser.speed_of_best(chosen), chooser.speed_of_best(best)
            slower = now < then * (1 - NO_SHARE)
            return f"{now:,.0f} instead of {then:,.0f} images/sec" if slower else ""
        pair, other = farthest_words(chooser.links, chosen), farthest_words(chooser.links, best)
        if pair == other:
            return ""
        prefix = "farthest pair "
        return f"{pair.removeprefix(prefix)} instead of {other.removeprefix(prefix)}"

    def _reasons_of_request(self, chosen: tuple[int, ...]) -> list[str]:
        chooser = self._chooser
        reasons = list[str]()
        if chooser.required is not None and not chooser.exact:
            reasons.append(f"every set contains GPU {chooser.required}, which holds the variables")
        if chooser.request.prefer_pix:
            met = "--prefer-pix is met" if len(chosen) > 1 else "--prefer-pix has no effect: one GPU"
            reasons += [refusal.reason for refusal in chooser.unmet(chosen)] or [met]
        return [
            *reasons,
            *self.warnings(chosen),
            *model_reasons(chooser.machine, chosen, equal_batches=len(set(chooser.batches(chosen))) < 2),
            *(out.reason for out in chooser.left_out),
        ]

    def _avoided_for(self, chosen: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the GPUs in use or in error that were avoided, and the best set with them.

        If GPUs in use are the reason for a smaller set, all of them are returned.
        """
        chooser = self._chooser
        others = chooser.troubles.keys() - set(chosen)
        if not others or (chooser.request.num_gpus is None and not chooser.request.prefer_pix):
            return tuple(sorted(others)), tuple(chosen)
        avoided = set[int]()
        first = best = chooser.sets(1)[0].gpus
        while more := others & set(best) - avoided:
            avoided |= more
            best = chooser.sets(1, avoided)[0].gpus
        return tuple(sorted(avoided)), first

    def _why_this_set(self) -> list[str]:
        """Return the number of sets that were compared, and by which criterion the choice is the best."""
        chooser = self._chooser
        if chooser.exact or chooser.sets_count == 1:
            return []
        by = "index" if chooser.size == 1 else "farthest pair"
        if chooser.size > 1 and chooser.measured is not None:
            by = "measured bandwidth of the slowest pair"
        if len(chooser.speed_classes) > 1:
            by = f"speed of the slowest GPU, then {by}"
        order = f"fewest GPUs in use or in error, then {by}" if chooser.troubles else by
        what = (
            f"{chooser.sets_count} GPUs"
            if chooser.size == 1
            else f"{chooser.sets_count} sets of {chooser.size} GPUs"
        )
        return [f"best of {what} by {order}"]

    def _short_reason(self, placed: PlacedGpus) -> str:
        short = farthest_words(self._chooser.links, placed.gpu_set.gpus)
        if troubled := sorted(self._chooser.troubles.keys() & set(placed.gpu_set.gpus)):
            short += f"; {gpus_in_words(troubled)} in use or in error"
        alike = placed.gpu_set.alike
        return short if alike == 1 else f"{short}; represents {alike} equivalent sets"


def margin_of(candidates: Sequence[Candidate]) -> float | None:
    """Return by which share of the first one's speed the runner-up is slower; below 0 if it is faster."""
    first = candidates[0].images_per_sec
    others = (other.images_per_sec for other in runners_up(candidates[0], candidates))
    second = next(filter(None, others), None)
    return None if second is None or not first else 1 - second / first
