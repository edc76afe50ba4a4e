"""The candidates of a plan: their numbers, and why they were chosen."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

import msgspec

from gputopo.planner.chooser import NO_SHARE, Basis, Chooser, PlacedGpus
from gputopo.planner.evidence import has_peer_access
from gputopo.planner.reasons import (
    avoided_reason,
    farthest_words,
    in_words,
    model_reasons,
    ms,
    reduction_reasons,
    troubles_in_words,
)
from gputopo.planner.request import batch_reasons, gpus_in_words
from gputopo.planner.selection import LISTED
from gputopo.prediction.links.paths import Paths, unknown_facts
from gputopo.prediction.one_gpu_speeds import SAME_RUN, Speed
from gputopo.prediction.ranges import is_number, range_of
from gputopo.prediction.step import Placement, StepSeconds
from gputopo.values.run.batches import plain
from gputopo.values.run.plan import (
    ALL,
    SURE_MARGIN,
    Candidate,
    GpuCount,
    Prediction,
    runners_up,
)

_WITH_REASONS = 1000  # candidates that get reasons if all are listed
COMPUTE = "compute"  # what limits a step


class Candidates:
    """The candidates for a request."""

    def __init__(self, chooser: Chooser) -> None:
        self._of = chooser
        self.decision = chooser.decide(chooser.best.gpus)
        self.warnings = cache(self._warnings)

    def best(self, keep: int | None) -> tuple[Candidate, ...]:
        """Return the best candidates, at most `keep`. ALL: also placements that need a request."""
        count = LISTED if keep is None else max(keep, 1)
        found = self._of.every(count) if keep == ALL else self._of.listed(count)
        first, *others = found
        reasons = tuple(dict.fromkeys(self._reasons(first)))
        choice = msgspec.structs.replace(self._candidate(first), reasons=reasons)
        rest = []
        for rank, one in enumerate(others):
            short = (self._short_reason(one),) if rank < _WITH_REASONS else ()
            rest.append(msgspec.structs.replace(self._candidate(one), reasons=short))
        if self.decision.speeds:  # measured speeds come before predicted ones
            rest.sort(key=lambda one: (one.gpus != choice.gpus, one.evidence != "measured"))
        evidence = self.decision.evidence
        if evidence == "measured" and choice.evidence == "predicted":
            evidence = "predicted"  # the speed is predicted: only other GPUs or another batch were measured
        return (msgspec.structs.replace(choice, evidence=evidence), *rest)

    def prediction(self, candidates: Sequence[Candidate], fewer: GpuCount | None) -> Prediction | None:
        """Return what the prediction is based on; None if the choice is not predicted.

        `fewer`: the fastest plan of fewer GPUs.
        """
        choice, basis = candidates[0], self._of.basis
        if choice.images_per_sec is None:
            return None
        speeds = {gpu: basis.speeds[gpu] for gpu in self._of.pool}
        found = prediction_of(basis, speeds, [speeds[gpu] for gpu in choice.gpus], candidates)
        return msgspec.structs.replace(found, learned=basis.learned, fewer=fewer)

    def _candidate(self, found: PlacedGpus) -> Candidate:
        """Return a candidate with its measured speed, or the predicted one if it was not measured."""
        of, (gpus, alike), placing, step = self._of, *found
        each = of.batches(gpus)
        candidate = Candidate(
            gpus=gpus,
            **placing._asdict(),
            alike=alike,
            batch_sizes=each if isinstance(plain(each or (0,)), tuple) else (),
        )
        if step is None:
            return candidate
        speeds = [of.basis.speeds[gpu] for gpu in gpus]
        measured = self.decision.speeds.get(placing) if found.of == of.best else None
        if measured is None:
            exchanges = len(gpus) > 1 and placing.traffic != "none"
            learned = of.basis.learned is not None and of.basis.learned.step_factor != 1.0
            factors = range_of(speeds, exchanges=exchanges, measured=learned)
        else:
            step, factors = step.lasting(sum(each) / measured), (1 - SAME_RUN, 1 + SAME_RUN)
        links = links_in_words(step, placing, of.paths)
        stepped = with_step(candidate, step, sum(each), speeds, factors, exposed_s(step), links)
        evidence, limited_by = "predicted" if measured is None else "measured", stepped.limited_by
        if limited_by == COMPUTE and (slowest := self._slowest(gpus)) is not None:
            limited_by = f"{COMPUTE} of GPU {slowest}"
        return msgspec.structs.replace(stepped, evidence=evidence, limited_by=limited_by)

    def _slowest(self, gpus: Sequence[int]) -> int | None:
        """Return the GPU that the others wait for; None if all are equally fast."""
        seconds = self._of.seconds_alone(gpus)
        slowest = max(gpus, key=seconds.__getitem__)
        return slowest if min(seconds.values()) < (1 - NO_SHARE) * seconds[slowest] else None

    def _reasons(self, found: PlacedGpus) -> Iterator[str]:
        of, gpus = self._of, found.of.gpus
        yield from self.decision.reasons
        yield from of.distance_reasons(gpus)
        yield from self._why_this_set()
        yield from self._peer_access(found)
        if of.predicts and len(gpus) > 1 and (unknown := unknown_facts(of.machine, of.paths)):
            yield f"not known: {'; '.join(unknown)}"
        yield from batch_reasons(of.request, of.batches(gpus) if of.predicts else (), known=of.predicts)
        yield from self._reasons_of_request(gpus)
        yield from reduction_reasons(of.machine, gpus, found.placing.all_reduce)
        if of.missing:
            yield f"nothing predicted: {of.missing}"

    def _peer_access(self, found: PlacedGpus) -> Iterator[str]:
        """Yield a note if the GPUs have no peer access, with the share of a step that the exchange takes."""
        of, gpus = self._of, found.of.gpus
        if len(gpus) < 2 or has_peer_access(of.paths, gpus) or found.placing.traffic == "none":
            return
        cost = ""
        if found.step is not None:
            share = 1 - found.step.compute_s / found.step.step_s
            cost = f"; the exchange takes {share:.0%} of a step"
        yield f"no peer access between these GPUs: copies go through host memory{cost}"

    def _warnings(self, chosen: tuple[int, ...]) -> list[str]:
        of = self._of
        said = []
        taken = sorted(of.troubles.keys() & set(chosen))
        if of.exact and taken:
            return [f"{troubles_in_words(of.troubles, taken)}: used because --gpus lists it"]
        avoided, best = self._avoided_for(chosen)
        if avoided:
            instead = "" if len(chosen) == 1 and not of.predicts else self._difference(chosen, best)
            said.append(avoided_reason(of.troubles, avoided, chosen, instead))
        if of.required in of.troubles:
            words = troubles_in_words(of.troubles, [of.required])
            said.append(f"{words}: used because --ps gpu:{of.required} places the variables on it")
        others = [index for index in taken if index != of.required]
        if others:
            said.append(f"{troubles_in_words(of.troubles, others)}: taken, as {of.idle_words()}")
        return said

    def _difference(self, chosen: Sequence[int], best: Sequence[int]) -> str:
        """Return how the chosen GPUs are worse than others of the same number; "" if they are not."""
        of = self._of
        if of.predicts:
            now, then = of.speed_of_best(chosen), of.speed_of_best(best)
            slower = now < then * (1 - NO_SHARE)
            return f"{now:,.0f} instead of {then:,.0f} images/sec" if slower else ""
        here, there = farthest_words(of.links, chosen), farthest_words(of.links, best)
        pair = "farthest pair "
        return f"{here.removeprefix(pair)} instead of {there.removeprefix(pair)}" if here != there else ""

    def _reasons_of_request(self, chosen: tuple[int, ...]) -> list[str]:
        of = self._of
        reasons = list[str]()
        if of.required is not None and not of.exact:
            reasons.append(f"every set contains GPU {of.required}, which holds the variables")
        if of.request.prefer_pix:
            met = "--prefer-pix is met" if len(chosen) > 1 else "--prefer-pix has no effect: one GPU"
            reasons += [refusal.reason for refusal in of.unmet(chosen)] or [met]
        return [
            *reasons,
            *self.warnings(chosen),
            *model_reasons(of.machine, chosen, equal_batches=len(set(of.batches(chosen))) < 2),
            *(out.reason for out in of.left_out),
        ]

    def _avoided_for(self, chosen: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the GPUs in use or in error that were avoided, and the best set with them.

        If GPUs in use are the reason for a smaller set, all of them are returned.
        """
        of = self._of
        others = of.troubles.keys() - set(chosen)
        if not others or (of.request.num_gpus is None and not of.request.prefer_pix):
            return tuple(sorted(others)), tuple(chosen)
        avoided = set[int]()
        first = best = of.sets(1)[0].gpus
        while more := others & set(best) - avoided:
            avoided |= more
            best = of.sets(1, avoided)[0].gpus
        return tuple(sorted(avoided)), first

    def _why_this_set(self) -> list[str]:
        """Return the number of sets that were compared, and by which criterion the choice is the best."""
        of = self._of
        if of.exact or of.sets_count == 1:
            return []
        by = "index" if of.size == 1 else "farthest pair"
        if of.size > 1 and of.measured is not None:
            by = "measured bandwidth of the slowest pair"
        if len(of.speed_classes) > 1:
            by = f"speed of the slowest GPU, then {by}"
        order = f"fewest GPUs in use or in error, then {by}" if of.troubles else by
        what = f"{of.sets_count} GPUs" if of.size == 1 else f"{of.sets_count} sets of {of.size} GPUs"
        return [f"best of {what} by {order}"]

    def _short_reason(self, found: PlacedGpus) -> str:
        short = farthest_words(self._of.links, found.of.gpus)
        if troubled := sorted(self._of.troubles.keys() & set(found.of.gpus)):
            short += f"; {gpus_in_words(troubled)} in use or in error"
        alike = found.of.alike
        return short if alike == 1 else f"{short}; represents {alike} equivalent sets"


def prediction_of(
    basis: Basis, speeds: Mapping[int, Speed], chosen: Iterable[Speed], candidates: Sequence[Candidate]
) -> Prediction:
    """Return the prediction of candidates. `speeds`: of single GPUs; `chosen`: of the chosen ones."""
    return Prediction(
        program=basis.program.name,
        batch_size=basis.batch,
        single_gpu_images_per_sec={gpu: round(one.images_per_sec, 2) for gpu, one in speeds.items()},
        single_gpu_source=" + ".join(dict.fromkeys(one.source for one in chosen)),
        margin=margin_of(candidates),
    )


def exposed_s(step: StepSeconds) -> dict[str, float]:
    """Return the seconds by which each part makes a step longer than its compute."""
    return {"weights": step.weights_s, "gradients": step.gradients_s, "variables": step.variables_s}


def links_in_words(step: StepSeconds, placing: Placement, paths: Paths) -> dict[str, str]:
    """Return the links that limit weights and gradients, in words."""
    by = {"weights": step.weights_by, "gradients": step.gradients_by}
    return {part: in_words(link, placing, paths) for part, link in by.items() if link is not None}


def with_step(
    candidate: Candidate,
    step: StepSeconds,
    examples: int,
    speeds: Sequence[Speed],
    factors: tuple[float, float],
    exposed: Mapping[str, float],
    links: Mapping[str, str],
) -> Candidate:
    """Return a candidate with its step.

    `examples`: of a step; `speeds`: of each GPU by itself; `factors`: low and high end of the range over the
    speed; `exposed`: seconds of each part in addition to the compute; `links`: the link that limits each
    part.
    """
    speed, (low, high) = examples / step.step_s, factors
    shown = is_number(low, high)
    longest = max(exposed, key=exposed.__getitem__)
    limited_by = "cost of variables" if longest == "variables" else links.get(longest, longest)
    if step.step_s - step.compute_s < SURE_MARGIN * step.step_s:
        limited_by = COMPUTE
    return msgspec.structs.replace(
        candidate,
        images_per_sec=round(speed, 2),
        images_per_sec_low=round(speed * low, 2) if shown else None,
        images_per_sec_high=round(speed * high, 2) if shown else None,
        speedup=round(speed / max(one.images_per_sec for one in speeds), 3),
        step_ms=ms(step.step_s),
        compute_ms=ms(step.compute_s),
        exposed_ms={part: ms(seconds) for part, seconds in exposed.items()},
        links=dict(links),
        limited_by=limited_by,
    )


def margin_of(candidates: Sequence[Candidate]) -> float | None:
    """Return by which share of the first one's speed the runner-up is slower; below 0 if it is faster."""
    runner_up = next((one for one in runners_up(candidates[0], candidates) if one.images_per_sec), None)
    first = candidates[0].images_per_sec
    return None if runner_up is None or not first else 1 - (runner_up.images_per_sec or 0.0) / first
