"""What a run does after a failure of its worker or a host: whether it goes on, and with which spec. Pure."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from gputopo.launch.failure import UNREACHABLE
from gputopo.launch.spec.names import rank_of
from gputopo.launch.spec.rules import check
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values import schema
from gputopo.values.errors import ExitCode, UsageError
from gputopo.values.option import listed
from gputopo.values.run.batches import plain
from gputopo.values.run.drill import SLOW
from gputopo.values.run.events import NCCL_TEST, CheckpointSaved, Event, Fewer, RankFailed, Step
from gputopo.values.run.verdict import Known

if TYPE_CHECKING:
    from gputopo.launch.hosts.rendezvous_server import RendezvousServer


# What ends a worker by chance. Memory, a loss that is no number and wrong input come again.
_BY_CHANCE = ("killed", "hung")


def may_restart(failed: RankFailed) -> bool:
    """Return whether the next worker may do better than one that failed like this.

    The servers of other hosts serve it too, if none of them is what failed.
    """
    if failed.rank:
        return False
    return failed.kind in _BY_CHANCE or (failed.kind == "error" and failed.exit_code == ExitCode.HARDWARE)


# Signals of a crash. Others come from outside: they would end the next worker, too.
_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")


def is_of_nccl(failed: RankFailed, phase: str | None) -> bool:
    """Return whether NCCL is what failed, so that the next worker may train without it.

    It adds wrongly, raises an error, crashes, or hangs. `phase`: the latest that the worker had begun.
    """
    if phase != NCCL_TEST or failed.rank:
        return False
    if failed.kind == "killed":
        return failed.signal in _CRASHES
    return failed.kind in ("placement", "error", "hung")


# A host that ends by its own user's Ctrl-C is one that somebody watches, who can do without a restart.
_OF_A_USER = ("interrupted",)
_COMES_AGAIN = (ExitCode.USAGE, ExitCode.BUG)


def is_loss(failed: RankFailed) -> bool:
    """Return whether a run can go on without the host that failed like this: the others would not.

    A host is lost where it is silent, its server or launcher was ended, its port is taken or its memory full.
    """
    return failed.rank > 0 and failed.kind not in _OF_A_USER and failed.exit_code not in _COMES_AGAIN


def require_losable(spec: RunSpec, min_hosts: int, restarts: int) -> None:
    """Raise UsageError where a run is to go on without a host, and cannot."""
    if not restarts:
        raise UsageError(
            "--min-hosts goes on by a restart, and --restart is 0",
            "add --restart N, --checkpoints DIR and --checkpoint-steps N",
        )
    hosts = len(spec.ranks)
    of = f"{hosts} host{'' if hosts == 1 else 's'} of this training"
    if min_hosts > hosts:
        raise UsageError(
            f"--min-hosts {min_hosts} is more than the {of}",
            f"give 1 to {hosts - 1}" if hosts > 1 else "leave it out",
        )
    check(spec, "losing")


def without_hosts(spec: RunSpec, lost: Collection[int]) -> RunSpec:
    """Return the spec of a run for the hosts that are left: their devices, each with its batch.

    `lost`: ranks. Ranks and names of the devices stay, their towers are numbered anew. The learning rate
    stays, unless it was to be scaled with the devices. Raises UsageError where the others cannot go on.
    """
    holder = rank_of(spec.ps_device or "")
    if holder is not None and holder in lost:
        raise UsageError(
            f"the variables were on {spec.servers[holder].host} (--ps {spec.asked.get('ps')})",
            "start all hosts again with --resume",
        )
    left = [device for device in spec.devices if device.rank not in lost]
    tower_of = {device.tower: tower for tower, device in enumerate(left)}
    groups = (tuple(tower_of[one] for one in group if one in tower_of) for group in spec.exchange.groups)
    scaled = len(left) / len(spec.devices) if spec.asked.get("scale_learning_rate") else 1.0
    drills = (
        msgspec.structs.replace(one, device=None if one.device is None else tower_of[one.device])
        for one in spec.drills
        if one.device is None or one.device in tower_of
    )
    fewer = msgspec.structs.replace(
        spec,
        devices=tuple(msgspec.structs.replace(one, tower=tower_of[one.tower]) for one in left),
        batch_size=plain([spec.batches[tower] for tower in tower_of]),
        exchange=msgspec.structs.replace(spec.exchange, groups=tuple(filter(None, groups))),
        drills=tuple(drills),
        learning_rate=spec.learning_rate * scaled,
    )
    check(fewer)
    return fewer


def fewer_of(before: RunSpec, rest: RunSpec, known: Known) -> Fewer | None:
    """Return what is different in the rest of a run that has lost hosts, None where it has lost none.

    `before`: the spec so far; `known`: of its devices.
    """
    if rest.devices == before.devices:
        return None
    lost = {one.rank: one.host or f"rank {one.rank}" for one in before.devices if one.rank not in rest.ranks}
    towers = {one.device: one.tower for one in rest.devices}
    moved = {one.tower: towers[one.device] for one in before.devices if one.device in towers}
    return Fewer(
        lost=tuple(lost.values()),
        spec=msgspec.json.decode(schema.encode(rest)),  # as a reader of the file sees it
        devices=rest.devices,
        batch_before=before.joint_batch,
        rate_before=before.learning_rate,
        known=known.of_towers(moved),
    )


class SavedSteps:
    """What the checkpoints of a run hold: `counted` of its steps; `trained` in all, 0: none was written."""

    def __init__(self) -> None:
        self.counted = self.trained = 0
        self._taken = 0  # counted steps since the worker's start
        self._before = 0  # counted steps that earlier workers have saved

    def add(self, event: Event) -> None:
        """Add the next event of the run."""
        if isinstance(event, Step) and (self._before or not event.warmup):  # as `continued` has them
            self._taken += 1
        elif isinstance(event, CheckpointSaved):
            self.counted, self.trained = self._before + self._taken, event.steps

    def begin_again(self) -> None:
        """Note that another worker starts from the latest checkpoint."""
        self._before, self._taken = self.counted, 0


def continued(spec: RunSpec, counted: int) -> RunSpec | None:
    """Return the spec for the rest of a run of which so many counted steps are saved; None: nothing is left.

    The new warm-up trains, too, so it is taken from the steps that are left.
    """
    saved = msgspec.structs.replace(spec.lifecycle, resume=False, resume_or_start=True)
    # Faults that happen once have happened; steps are numbered anew.
    drills = tuple(
        msgspec.structs.replace(drill, step=max(0, drill.step - counted))
        for drill in spec.drills
        if drill.fault in SLOW
    )
    spec = msgspec.structs.replace(spec, lifecycle=saved, drills=drills)
    if spec.num_batches is None or not counted:
        return spec
    left = spec.num_batches - counted
    if left < 1:
        return None
    warmup = min(spec.num_warmup_batches, left - 1)
    return msgspec.structs.replace(
        spec, num_batches=left - warmup, num_warmup_batches=warmup, min_warmup_s=0.0
    )


Wait = Callable[[Callable[[], bool], float], bool | None]
"""Waits until something is so, for some seconds; returns whether it came to be, None after a signal."""


class Regrouping:
    """Goes on with the hosts that are left, as long as there are `least`, rank 0 among them; None: with all.

    `timeout_s`: until all of them must have started their servers again. For the launcher's main thread.
    """

    def __init__(self, server: "RendezvousServer", least: int | None, timeout_s: float) -> None:
        self.may_lose = least is not None
        self._server = server
        self._least = least
        self._timeout_s = timeout_s
        self._lost: Mapping[int, str] = {}  # those that the run goes on without, by rank: why

    def rest(
        self, spec: RunSpec, failed: RankFailed, counted: int, wait: Wait, note: Callable[[str], None]
    ) -> tuple[RunSpec | None, str]:
        """Return the rest of a run for the hosts that are left, once their servers are there, and the cause.

        `spec`: as the run began; `failed`: why its last worker ended; `counted`: its steps that are saved.
        None where it cannot go on: `note` got the reason, or a signal came. Servers start again also after a
        failure of rank 0's worker alone: what it had on them stays for minutes, and collectives of another
        process wait for it.
        """
        server, before = self._server, self._lost
        # The worker sees that a server is gone, and not always whose; its host says why, or falls silent.
        if failed.kind == UNREACHABLE and (
            wait(lambda: self._lost_now() != before, server.decided_s) is None
        ):
            return None, ""
        while True:
            self._lost = lost = self._lost_now()
            try:
                fewer = without_hosts(spec, lost)
            except UsageError as error:
                note(f"Training cannot go on without this host: {error.what}.")
                return None, ""
            rest = continued(fewer, counted)
            if rest is None or not self._are_enough(spec, fewer, note):
                return None, ""
            with server.members() as members:
                members.start_again(schema.encode(rest))
            came = wait(partial(self._is_settled, lost), self._timeout_s)
            if came is None:
                return None, ""
            with server.members() as members:
                if not came:
                    members.give_up(f"did not start its server again within {self._timeout_s:g} s")
                elif members.lost() == lost:
                    new = [why for rank, why in lost.items() if rank not in before]
                    return rest, listed(new, "and") if new else failed.cause

    def _lost_now(self) -> Mapping[int, str]:
        with self._server.members() as members:
            return members.lost()

    def _is_settled(self, lost: Mapping[int, str]) -> bool:
        with self._server.members() as members:
            return members.serving() or members.lost() != lost

    def _are_enough(self, spec: RunSpec, fewer: RunSpec, note: Callable[[str], None]) -> bool:
        left, needed = len(fewer.ranks), self._least or len(spec.ranks)
        if left < needed:
            hosts = f"{left} host{' is' if left == 1 else 's are'}"
            why = (
                f"--min-hosts is {needed}"
                if self.may_lose
                else f"without --min-hosts all {needed} are needed"
            )
            note(f"Training cannot go on: {hosts} left, and {why}.")
        return left >= needed
