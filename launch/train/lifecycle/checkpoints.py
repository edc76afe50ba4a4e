"""The checkpoints of a run: its variables into a file, and back to where they live."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tensorflow as tf

from gputopo import __version__
from gputopo.launch.models.models import Model
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.lifecycle import checkpoint_files as files
from gputopo.launch.train.lifecycle import folders
from gputopo.launch.train.lifecycle.checkpoint_files import Array, Checkpoint, Header
from gputopo.launch.train.loop import Stepper
from gputopo.values.run.events import CheckpointSaved, Event, Noticed, PhaseBegun, Resumed

Emit = Callable[[Event], None]
Copies = dict[str, list[Any]]  # the name of an array, and the variables that hold it
_CARRIED = "carried/"  # begins the names of what a mode carries from step to step


class Checkpoints:
    """Saves and restores one run. Without a folder in the spec nothing is ever done."""

    def __init__(self, model: Model, spec: RunSpec, step: Stepper, emit: Emit) -> None:
        self._model = model
        self._spec = spec
        self._step = step
        self._emit = emit
        self._folder = None if spec.lifecycle.checkpoints is None else Path(spec.lifecycle.checkpoints)
        self._saved = -1
        self._begun = 0, 0  # steps and images of all runs before this one

    def start(self) -> int:
        """Bring the variables to where training begins; return the steps that they are trained for.

        With `resume`: the newest whole checkpoint; without one in the folder, from the start where that is
        asked for, with a notice.
        Raises InputError for a checkpoint of another run, or where all are damaged, and as `require_begin`;
        DiskError if the folder cannot be written.
        """
        trained = self._begin()
        lifecycle, hosts = self._spec.lifecycle, self._step.hosts
        if hosts is None or not (lifecycle.resume or lifecycle.resume_or_start):
            return trained
        return self._share(hosts, trained)

    def _begin(self) -> int:
        if self._folder is None:
            return 0
        folders.require_writable(self._folder)
        found, damaged = files.newest(self._folder)
        lifecycle = self._spec.lifecycle
        resumes = lifecycle.resume or lifecycle.resume_or_start
        if found is None and damaged and resumes:
            raise files.all_damaged(damaged)
        for remark in damaged:
            self._notice(remark)
        files.require_begin(self._folder, lifecycle, steps=None if found is None else found.header.steps)
        if found is None:
            if resumes:
                self._notice(f"There is no checkpoint in {self._folder}: training begins at the start.")
            return 0
        return self._resume(found)

    def save_if_due(self, steps: int) -> None:
        """Write a checkpoint if it is time for one. `steps`: trained so far."""
        every = self._spec.lifecycle.checkpoint_steps
        if every and steps % every == 0:
            self.save(steps)

    def save(self, steps: int) -> None:
        """Write a checkpoint, unless this step's is written, and remove the oldest.

        Raises DiskError, and leaves the checkpoints before as they are.
        """
        if self._folder is None or steps == self._saved:
            return
        self._emit(PhaseBegun(time_s=time.time(), phase="checkpoint"))
        began = time.perf_counter()
        written = files.write(self._folder, self._header(steps), self._values())
        removed = files.prune(self._folder, self._spec.lifecycle.keep_checkpoints)
        self._saved = steps
        self._emit(
            CheckpointSaved(
                time_s=time.time(),
                path=str(written.path),
                steps=steps,
                bytes=written.path.stat().st_size,
                seconds=time.perf_counter() - began,
                removed=tuple(map(str, removed)),
            )
        )

    def _resume(self, found: Checkpoint) -> int:
        wanted = self._header(found.header.steps)
        files.require_same(found, wanted)
        copies, scale, carried = self._copies(), _scale(self._step), _carried(self._step, self._spec)
        files.require_shapes(found, _shapes(copies))
        keeps_scale, carries_on = _holds(found, scale), _holds(found, carried)
        _restore(found, {**copies, **(scale if keeps_scale else {}), **(carried if carries_on else {})})
        if not carries_on:
            self._step.placement.reset_buffers()
            self._notice("The buffers of this mode are not in the checkpoint: they start empty.")
        elif any(name.startswith(_CARRIED) and name not in carried for name in found.header.arrays):
            self._notice("Buffers of another mode in the checkpoint, such as stored gradients, are ignored.")
        if not keeps_scale:
            self._notice("The checkpoint has no automatic loss scale: it starts from its initial value.")
        # With another batch or other devices a step takes other images, and none is to be passed over.
        images = found.header.images
        if images is not None:
            self._begun = found.header.steps, images
            self._step.source.start_at(found.header.steps, images)
        if found.header.seed != self._spec.seed:
            self._notice(
                f"The checkpoint was made with --seed {found.header.seed}, this run continues with "
                f"{self._spec.seed}: it is not what an uninterrupted run would be."
            )
        self._saved = found.header.steps
        self._emit(Resumed(time_s=time.time(), path=str(found.path), steps=found.header.steps))
        return found.header.steps

    def _share(self, hosts: Any, trained: int) -> int:
        """Bring where rank 0 begins to the processes of the other hosts, which read no checkpoint."""
        copies = [*self._copies().values(), *_scale(self._step).values()]
        place = tf.constant((trained, *self._begun), tf.int64)
        place, *values = hosts.from_first([place, *(variables[0] for variables in copies)])
        for variables, value in zip(copies, values, strict=True):
            for variable in variables:
                with tf.device(variable.device):
                    variable.assign(value)
        trained, *begun = (int(number) for number in place.numpy())
        self._step.source.start_at(*begun)
        return trained

    def _notice(self, says: str) -> None:
        self._emit(Noticed(time_s=time.time(), says=says))

    def _header(self, steps: int) -> Header:
        before, images = self._begun
        images += (steps - before) * self._spec.joint_batch
        return header_of(self._model, self._spec, steps=steps, images=images)

    def _copies(self) -> Copies:
        copies = variables_of(self._model, self._spec, self._step.placement)
        names = files.names_of([one.name for one in self._model.variables])
        own = self._step.own_slots
        for place, slots in _sets(self._spec, self._step.slots):
            for name, *of_places in zip(names, *slots, strict=True):
                for number, same in enumerate(zip(*(one[:own] for one in of_places), strict=True)):
                    copies[f"slots/{place}/{name}/{number}"] = list(same)
            # Every device has a copy of these: how many devices there are is none of a checkpoint's business.
            shared = [one[own:] for of_place in slots for one in of_place if len(one) > own]
            for number, same in enumerate(zip(*shared, strict=True)):
                copies[f"shared/{place}/{number}"] = list(same)
        return copies

    def _values(self) -> Iterator[tuple[str, Array]]:
        carried = _carried(self._step, self._spec)
        for name, variables in {**self._copies(), **_scale(self._step), **carried}.items():
            yield name, variables[0].numpy()


def load_for_evaluation(
    folder: Path, model: Model, spec: RunSpec, placement: Any
) -> tuple[Checkpoint, list[str]]:
    """Bring the newest whole checkpoint's variables and statistics into a placement, on any devices.

    Returns the checkpoint and remarks. Of independent towers the first one's are loaded.
    Raises InputError if there is none, or it is of another model.
    """
    found, damaged = files.newest(folder)
    remarks = list(damaged)
    if found is None and damaged:
        raise files.all_damaged(damaged)
    if found is None:
        raise files.no_checkpoint(folder)
    # How it was trained does not matter.
    header = found.header
    wanted = msgspec.structs.replace(header, model=spec.model, classes=model.classes)
    files.require_same(found, wanted)
    if header.alone and header.places > 1:
        remarks.append(f"The checkpoint holds {header.places} separate trainings: the first is evaluated.")
    copies = variables_of(model, spec, placement, together=True)
    files.require_shapes(found, _shapes(copies))
    _restore(found, copies)
    return found, remarks


def header_of(model: Model, spec: RunSpec, *, steps: int, images: int | None = None) -> Header:
    """Describe the run for its checkpoints."""
    alone = spec.variable_update == "independent"
    return Header(
        steps=steps,
        model=spec.model,
        classes=model.classes,
        optimizer=spec.optimization.optimizer,
        optimizer_of="gputopo" if spec.method is None else "keras",
        variable_update=spec.variable_update,
        places=len(spec.devices) if alone else 1,
        seed=spec.seed,
        images=images,
        versions={"gputopo": __version__, "tensorflow": tf.__version__},
    )


def variables_of(model: Model, spec: RunSpec, placement: Any, *, together: bool = False) -> Copies:
    """Return the names of all variables and statistics, each with its copies, which have one value.

    Towers that train alone have a name each; `together`: they are to get the same values.
    """
    copies: Copies = {}
    for kind, specs, places in (
        ("variables", model.variables, placement.places),
        ("state", model.state, placement.states),
    ):
        names = files.names_of([one.name for one in specs])
        for place, sets in _sets(spec, places, together=together):
            for name, *same in zip(names, *sets, strict=True):
                copies[f"{kind}/{place}/{name}"] = list(same)
    return copies


def _sets(
    spec: RunSpec, places: Sequence[Any], *, together: bool = False
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yield the sets with different values: (place, its copies)."""
    if spec.variable_update == "independent" and not together:
        for place, own in enumerate(places):
            yield place, [own]
    elif places:
        yield 0, places


def _scale(step: Stepper) -> Copies:
    flat = [] if step.scale is None else _flat(step.scale.variables)
    return {f"scale/{number}": [one] for number, one in enumerate(flat)}


def _carried(step: Stepper, spec: RunSpec) -> Copies:
    """Name the buffers of a mode by the mode and its devices, which decide what each one means.

    Shapes are not enough: staged weights of one mode are as large as stored gradients of another.
    """
    mode = "staged" if spec.exchange.staged else "relaxed"
    return {
        f"{_CARRIED}{mode}/{len(spec.devices)}/{number}": [one]
        for number, one in enumerate(step.placement.buffers)
    }


def _holds(found: Checkpoint, copies: Copies) -> bool:
    return all(found.header.arrays.get(name) == shape for name, shape in _shapes(copies).items())


def _shapes(copies: Copies) -> dict[str, tuple[int, ...]]:
    return {name: tuple(variables[0].shape) for name, variables in copies.items()}


def _restore(found: Checkpoint, copies: Copies) -> None:
    for name, array in found.arrays():
        for variable in copies.get(name, ()):
            with tf.device(variable.device):
                variable.assign(array)


def _flat(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [one for row in rows for one in row]
