"""The candidates of a plan: their numbers, why they were chosen, and what each option costs. Pure."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations
from math import exp, hypot, log
from typing import NamedTuple

import msgspec

from gputopo.planner.fastest import NO_SHARE, Fastest, has_large_variables, record_kind
from gputopo.planner.reasons import (
    avoided_reason,
    farthest_words,
    in_words,
    margin_of,
    model_reasons,
    ms,
    reduction_reasons,
    troubles_in_words,
)
from gputopo.planner.request import Request, batch_reasons, gpus_in_words
from gputopo.planner.selection import ALL
from gputopo.prediction.calibration import range_share
from gputopo.prediction.links.paths import unknown_facts
from gputopo.prediction.search import FoundCandidate
from gputopo.prediction.step import ModelCosts, Placement
from gputopo.values.run.batches import plain
from gputopo.values.run.plan import (
    SURE_MARGIN,
    Candidate,
    GpuCount,
    Prediction,
    Price,
    VariableUpdate,
    mode_name,
)

RULE = (
    "no step is predicted: GPUs with NVLinks between all pairs have a copy each, reduced by NCCL; one GPU, "
    "or two on one PCIe switch, have the variables, of others the CPU has them"
)


# Factors by which the range of GPUs together is wider: with links of which no generation and width was read;
# with copies through the host below one switch, of which a published box is so much slower than predicted.
UNREAD_LINKS, STAGED_BELOW_SWITCH = 1.15, 1.44
_WITH_REASONS = 1000  # candidates, where all are listed


class _OfSet(NamedTuple):
    """What all candidates of a set of GPUs have in common."""

    batch: int  # examples of a step
    batch_sizes: tuple[int, ...]  # of each GPU where they differ
    fastest: float  # images/sec of the fastest GPU alone
    alone: tuple[float, float]  # range over the prediction of each GPU by itself
    together: tuple[float, float]  # of all together
    slowest: int | None  # the GPU that the others wait for


def record_reason(model: ModelCosts, chosen: FoundCandidate, fastest: FoundCandidate) -> str:
    """Return why a placement was chosen before the one that is predicted to be fastest."""
    variables = "large" if has_large_variables(model) else "small"
    apart = chosen.prediction.step_s / fastest.prediction.step_s - 1
    names = [mode_name(*one.placing) for one in (fastest, chosen)]
    return (
        f"tie, settled by record: {names[0]} is predicted {apart:.1%} faster, and for networks with "
        f"{variables} variables {names[1]} was faster where both were measured; --autotune measures them here"
    )


class Candidates:
    """The candidates of what a request leaves to choose from."""

    def __init__(self, selection: Fastest) -> None:
        self._of = selection
        self._of_set = cache(self._new_of_set)
        self.warnings = cache(self._warnings)

    def best(self, keep: int | None) -> tuple[Candidate, ...]:
        """Return the fastest candidates, `keep` at most; ALL: also those that are never chosen unasked.

        Of many the first have reasons.
        """
        found, searched = self._of.every() if keep == ALL else self._of.listed(keep)
        found = self._of.by_record(found)
        candidates = [*map(self._candidate, found)]
        for rank, one in enumerate(found[:_WITH_REASONS]):
            # The first one has all its reasons, the others are in short.
            reasons = tuple(self._short_reasons(one) if rank else self._reasons(one, searched))
            candidates[rank] = msgspec.structs.replace(candidates[rank], reasons=reasons)
        return tuple(candidates)

    def prediction(self, candidates: Sequence[Candidate], fewer: GpuCount | None) -> Prediction | None:
        """Return from what was predicted, how sure the choice is, and what the options cost.

        `fewer`: the fastest plan of fewer GPUs.
        """
        choice, of, basis = candidates[0], self._of, self._of.basis
        if not of.predicts:
            return None
        margin, tie = margin_of(candidates, "a short run of each (--autotune)")
        return Prediction(
            program=basis.program.name,
            batch_size=basis.batch,
            single_gpu_images_per_sec={gpu: round(basis.speeds[gpu].images_per_sec, 2) for gpu in of.pool},
            single_gpu_source=" + ".join(dict.fromkeys(basis.speeds[gpu].source for gpu in choice.gpus)),
            margin=margin,
            tie=tie,
            learned=basis.learned,
            prices=() if of.is_assumed else tuple(self._prices(choice)),
            fewer=fewer,
            default_images_per_sec=self._default(choice),
        )

    def _default(self, choice: Candidate) -> float | None:
        """Return the speed of the lowest GPUs with what tf.distribute.MirroredStrategy does by default."""
        of = self._of
        lowest = of.pool[: of.size]
        if of.size == 1 or choice.variable_update == "independent" or of.required not in (None, *lowest):
            return None
        found = of.search(lowest, 1, placings=(Placement("replicated", None, "nccl"),))
        return round(of.images_per_sec(found[0]), 2)

    def _candidate(self, found: FoundCandidate) -> Candidate:
        return self._predicted(found) if self._of.predicts else self._unpredicted(found)

    def _unpredicted(self, found: FoundCandidate) -> Candidate:
        """Return a set with its variables where they were requested, else by RULE."""
        of, gpus = self._of, found.gpus
        update, ps = of.variable_update, of.request.ps
        linked = of.all_nvlinked(gpus)
        served = update == "parameter_server" or (update == "auto" and (ps != "auto" or not linked))
        on_gpu = len(gpus) == 1 or (len(gpus) == 2 and of.in_one_island(gpus))
        device = ps if ps != "auto" else f"gpu:{gpus[0]}" if on_gpu else "cpu"
        own: VariableUpdate = "independent" if update == "independent" else "replicated"
        own_copies = not served and own == "replicated"
        each = of.batches(gpus)
        return Candidate(
            gpus=gpus,
            variable_update="parameter_server" if served else own,
            ps_device=device if served else None,
            all_reduce=(of.all_reduce or ("nccl" if linked else "copy")) if own_copies else None,
            alike=found.alike,
            batch_sizes=each if isinstance(plain(each or (0,)), tuple) else (),
        )

    def _predicted(self, found: FoundCandidate) -> Candidate:
        gpus, placing, step = found.gpus, found.placing, found.prediction
        share = 1.0 if self._of.basis.learned is None else range_share(self._of.basis.learned, placing)
        known = self._of_set(gpus, share)
        speed = known.batch / step.step_s
        low, high = known.alone if len(gpus) == 1 else known.together
        if placing.traffic == "none":  # 85 and 88 % of the GPUs' sum were measured (7gforce)
            high = known.alone[1]
        links = {"weights": step.weights_by, "gradients": step.gradients_by}
        return Candidate(
            gpus=gpus,
            variable_update=placing.variable_update,
            ps_device=placing.ps_device,
            all_reduce=placing.all_reduce,
            alike=found.alike,
            images_per_sec=round(speed, 2),
            images_per_sec_low=round(speed * low, 2),
            images_per_sec_high=round(speed * high, 2),
            speedup=round(speed / known.fastest, 3),
            step_ms=ms(step.step_s),
            batch_sizes=known.batch_sizes,
            compute_ms=ms(step.compute_s),
            exposed_ms={
                "weights": ms(step.weights_s),
                "gradients": ms(step.gradients_s),
                "variables": ms(step.variables_s),
            },
            links={
                part: in_words(by, placing, self._of.paths) for part, by in links.items() if by is not None
            },
            limited_by=self._limited_by(found, known.slowest),
        )

    def _new_of_set(self, gpus: tuple[int, ...], share: float) -> _OfSet:
        """Return what all candidates of a set have in common.

        The range of GPUs together is that of the program, `share` times as wide, and of the slowest GPU's
        speed. Their errors are independent: logarithms add up as squares do.
        """
        program, speeds = self._of.basis.program, [self._of.basis.speeds[gpu] for gpu in gpus]
        slowest = min(speeds)
        low, high = log(slowest.low / slowest.images_per_sec), log(slowest.high / slowest.images_per_sec)
        each = self._of.batches(gpus)
        slower, faster = self._of_links(gpus)
        return _OfSet(
            sum(each),
            each if len(set(each)) > 1 else (),
            max(speeds).images_per_sec,
            (exp(low), exp(high)),
            (
                exp(-hypot(share * log(program.low), low, slower)),
                exp(hypot(share * log(program.high), high, faster)),
            ),
            self._slowest(gpus, each),
        )

    def _of_links(self, gpus: Sequence[int]) -> tuple[float, float]:
        """Return by how much, as logarithms, the links of a set may make it slower and faster."""
        paths = self._of.paths
        pairs = list(combinations(gpus, 2))
        known = all(paths.pair(*pair).basis in ("measured", "link") for pair in pairs)
        staged = any(
            paths.pair(*pair).through_host and set(pair) <= uplink.gpus
            for pair in pairs
            for uplink in paths.uplinks
        )
        unread = 0.0 if known else log(UNREAD_LINKS)
        return hypot(unread, log(STAGED_BELOW_SWITCH) if staged else 0.0), unread

    def _slowest(self, gpus: Sequence[int], batches: Sequence[int]) -> int | None:
        """Return the GPU that the others wait for; None where all are as fast."""
        own = zip(gpus, batches, strict=True)
        seconds = {gpu: self._of.basis.seconds(gpu, batch) for gpu, batch in own}
        slowest = max(gpus, key=seconds.__getitem__)
        return slowest if min(seconds.values()) < (1 - NO_SHARE) * seconds[slowest] else None

    def _limited_by(self, found: FoundCandidate, slowest: int | None) -> str:
        step = found.prediction
        if step.step_s - step.compute_s < SURE_MARGIN * step.step_s:
            return "compute" if slowest is None else f"compute of GPU {slowest}"
        if step.variables_s > max(step.weights_s, step.gradients_s):
            return "cost of variables"
        by, largest = step.weights_by, "weights"
        if step.gradients_s > step.weights_s:
            by, largest = step.gradients_by, "gradients"
        return largest if by is None else in_words(by, found.placing, self._of.paths)

    def _reasons(self, found: FoundCandidate, searched: Sequence[FoundCandidate]) -> list[str]:
        of, gpus, chosen = self._of, found.gpus, self._candidate(found)
        reasons = [*of.distance_reasons(gpus), *self._why_this_set()]
        if of.predicts and record_kind(found.placing) != record_kind(searched[0].placing):
            reasons.append(record_reason(of.basis.model, found, searched[0]))
        if of.predicts:
            if len(gpus) > 1 and (unknown := unknown_facts(of.machine, of.paths)):
                reasons.append(f"not known: {'; '.join(unknown)}")
            reasons += batch_reasons(of.request, of.batches(gpus), known=not of.is_assumed)
        reasons += self._reasons_of_request(gpus)
        if not of.predicts:
            if of.request.ps == "auto" and chosen.ps_device is not None:
                reasons.append(f"variables on {chosen.ps_device}: {RULE}")
            elif of.variable_update == "auto" and chosen.all_reduce is not None:
                reasons.append(f"a copy of the variables on each GPU: {RULE}")
            reasons += batch_reasons(of.request, (), known=False)
        reasons += reduction_reasons(of.machine, gpus, chosen.all_reduce)
        return [*reasons, *([f"nothing predicted: {of.basis.missing}"] if of.basis.missing else [])]

    def _warnings(self, chosen: tuple[int, ...]) -> list[str]:
        of = self._of
        said = []
        taken = sorted(of.troubles.keys() & set(chosen))
        if of.exact and taken:
            return [f"{troubles_in_words(of.troubles, taken)}: taken as named by --gpus"]
        avoided, best = self._avoided_for(chosen)
        if avoided:
            by = of.nearest or of
            instead = "" if len(chosen) == 1 else by.difference(chosen, best)
            said.append(avoided_reason(of.troubles, avoided, chosen, instead))
        if of.required in of.troubles:
            words = troubles_in_words(of.troubles, [of.required])
            said.append(f"{words}: taken, as --ps gpu:{of.required} places the variables there")
        others = [index for index in taken if index != of.required]
        if others:
            said.append(f"{troubles_in_words(of.troubles, others)}: taken, as {of.idle_words()}")
        return said

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
        """Return the GPUs in use or in error without which others were not chosen, and the best set.

        Where GPUs in use are the reason for a smaller set, all of them.
        """
        of = self._of
        others = of.troubles.keys() - set(chosen)
        if not others or (of.request.num_gpus is None and not of.request.prefer_pix):
            return tuple(sorted(others)), tuple(chosen)
        search, avoided = (of.nearest or of).search, set[int]()
        first = best = search(of.pool, 1)[0].gpus
        while more := others & set(best) - avoided:
            avoided |= more
            best = search(of.pool, 1, avoided)[0].gpus
        return tuple(sorted(avoided)), first

    def _why_this_set(self) -> list[str]:
        """Return among how many sets the choice is the best, by what."""
        of = self._of
        if of.nearest is not None:
            assumed = "the speed of one GPU is assumed, so the nearest GPUs are chosen"
            return [*Candidates(of.nearest)._why_this_set(), assumed]
        if of.exact or of.sets == 1:
            return []
        by = "predicted step time" if of.predicts else "index" if of.size == 1 else "farthest pair"
        if by == "farthest pair" and of.measured is not None:
            by = "measured bandwidth of the slowest pair"
        order = f"fewest GPUs in use or in error, then {by}" if of.troubles else by
        what = f"{of.sets} GPUs" if of.size == 1 else f"{of.sets} sets of {of.size} GPUs"
        return [f"best of {what} by {order}"]

    def _short_reasons(self, found: FoundCandidate) -> Iterator[str]:
        short = farthest_words(self._of.links, found.gpus)
        if troubled := sorted(self._of.troubles.keys() & set(found.gpus)):
            short += f"; {gpus_in_words(troubled)} in use or in error"
        yield short if found.alike == 1 else f"{short}; represents {found.alike} equivalent sets"

    def _prices(self, choice: Candidate) -> Iterator[Price]:
        of = self._of
        for option, request in self._without_options(choice).items():
            other = Fastest(of.machine, request, of.unavailable, of.basis)
            bases = {of.basis.speeds[gpu].basis if gpu in of.basis.speeds else None for gpu in other.pool}
            if None in bases or ("given" in bases and len(bases) > 1):
                continue  # a speed that was given is not to be compared with those of other sources
            if isinstance(request.batch_size, tuple) and other.size != of.size:
                continue  # the batches are those of so many GPUs
            best = other.search(other.pool, 1, other.troubles)[0]
            speed = other.images_per_sec(best)
            share = 1 - (choice.images_per_sec or 0.0) / speed
            yield Price(
                option=option,
                share=round(share, 4) if share > NO_SHARE else 0.0,
                images_per_sec=round(speed, 2),
                instead=best.gpus,
                mode=" ".join(filter(None, best.placing)),
            )

    def _without_options(self, choice: Candidate) -> dict[str, Request]:
        of = self._of
        request = of.request
        freed: dict[str, dict[str, object]] = {}
        if request.prefer_pix and of.in_one_island(choice.gpus) and of.size > 1:
            freed["--prefer-pix"] = {"prefer_pix": False}
        if request.ps != "auto":
            freed[f"--ps {request.ps}"] = {"ps": "auto"}
        if request.all_reduce is not None:
            freed[f"--all-reduce {request.all_reduce}"] = {"all_reduce": None}
        elif request.variable_update in ("parameter_server", "replicated"):
            freed[f"--variable-update {request.variable_update}"] = {"variable_update": "auto"}
        if of.exact and of.required is None:
            freed["--gpus"] = {"gpus": None, "num_gpus": of.size}
        return {option: msgspec.structs.replace(request, **fields) for option, fields in freed.items()}
