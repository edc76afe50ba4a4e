"""The checkpoints of a run: saves its variables to files, and restores them on their devices."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import tensorflow as tf

from gputopo import __version__
from gputopo.launch.models.model import Model
from gputopo.launch.train.lifecycle import checkpoint_files as files
from gputopo.launch.train.lifecycle import folders
from gputopo.launch.train.lifecycle.checkpoint_files import Checkpoint, CheckpointHeader
from gputopo.launch.train.stepper import Emit, Stepper
from gputopo.values.run.events import CheckpointSaved, Noticed, PhaseBegun, Resumed
from gputopo.values.run.spec import RunSpec

Copies = dict[str, list[Any]]  # by name of an array: the variables that hold its value


class Checkpoints:
    """Saves and restores one run. Does nothing if the spec has no folder for checkpoints."""

    def __init__(self, model: Model, spec: RunSpec, step: Stepper, emit: Emit) -> None:
        self._model = model
        self._spec = spec
        self._step = step
        self._emit = emit
        self._folder = None if spec.lifecycle.checkpoints is None else Path(spec.lifecycle.checkpoints)
        self._saved = -1
        self._begun = 0, 0  # steps and images of all runs before this one

    def start(self) -> int:
        """Restore the variables if requested; return the number of steps that they are trained for.

        With `resume`, restore the newest intact checkpoint. With `resume_or_start` and no checkpoint, start
        from the beginning with a notice. Raises as `checkpoint_files.to_begin`; also InputError if the
        checkpoint is from another run, and DiskError if the folder cannot be written.
        """
        trained, saved = 0, self._spec.lifecycle
        resumes = saved.resume or saved.resume_or_start
        if self._folder is not None:
            folders.require_writable(self._folder)
            checkpoint, remarks = files.to_begin(saved)
            for remark in remarks:
                self._notice(remark)
            if checkpoint is not None:
                trained = self._resume(checkpoint)
            elif resumes:
                self._notice(f"There is no checkpoint in {self._folder}: training starts from the beginning.")
        if self._step.from_first is not None and resumes:
            # Processes of other hosts read no checkpoint: they get rank 0's variables and start.
            share(self._saved_variables(), self._step.from_first)
            (place,) = self._step.from_first([tf.constant((trained, *self._begun), tf.int64)])
            trained, *begun = (int(number) for number in place.numpy())
            self._step.source.start_at(*begun)
        return trained

    def save_if_due(self, steps: int) -> None:
        """Write a checkpoint if one is due. `steps`: steps trained so far."""
        every = self._spec.lifecycle.checkpoint_steps
        if every and steps % every == 0:
            self.save(steps)

    def save(self, steps: int) -> None:
        """Write a checkpoint, unless it is already written for this step, and remove the oldest ones.

        Raises DiskError; earlier checkpoints are then not changed.
        """
        if self._folder is None or steps == self._saved:
            return
        self._emit(PhaseBegun(time_s=time.time(), phase="checkpoint"))
        began = time.perf_counter()
        arrays = ((name, variables[0].numpy()) for name, variables in self._saved_variables().items())
        written = files.write_checkpoint(self._folder, self._header(steps), arrays)
        removed = files.prune_checkpoints(self._folder, self._spec.lifecycle.keep_checkpoints)
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

    def _resume(self, checkpoint: Checkpoint) -> int:
        header = checkpoint.header
        files.require_same(checkpoint, self._header(header.steps))
        copies, scale = self._copies(), _scale(self._step)
        files.require_shapes(checkpoint, _shapes(copies))
        if scale.keys() <= header.arrays.keys():
            copies |= scale
        else:
            self._notice("The checkpoint has no automatic loss scale: it starts from its initial value.")
        _restore(checkpoint, copies)
        self._step.placement.reset_buffers()
        if self._spec.exchange.staged or self._spec.exchange.relaxed:
            self._notice(
                "A checkpoint does not store the gradients of the previous step, so the first "
                "step applies none."
            )
        # With another batch size or other devices, steps have other images. No image must be skipped.
        if header.images is not None:
            self._begun = header.steps, header.images
            self._step.source.start_at(header.steps, header.images)
        if header.seed != self._spec.seed:
            self._notice(
                f"The checkpoint was made with --seed {header.seed}, this run continues with "
                f"{self._spec.seed}: the result differs from an uninterrupted run."
            )
        self._saved = header.steps
        self._emit(Resumed(time_s=time.time(), path=str(checkpoint.path), steps=header.steps))
        return header.steps

    def _notice(self, says: str) -> None:
        self._emit(Noticed(time_s=time.time(), says=says))

    def _header(self, steps: int) -> CheckpointHeader:
        before, images = self._begun
        images += (steps - before) * self._spec.joint_batch
        versions = {"gputopo": __version__, "tensorflow": tf.__version__}
        return files.header_of(self._spec, self._model.classes, steps=steps, images=images, versions=versions)

    def _copies(self) -> Copies:
        copies = variables_of(self._model, self._spec, self._step.placement)
        names = files.names_of([variable.name for variable in self._model.variables])
        for place, slots in _sets(self._spec, self._step.slots):
            for name, *of_places in zip(names, *slots, strict=True):
                for number, same in enumerate(zip(*of_places, strict=True)):
                    copies[f"slots/{place}/{name}/{number}"] = list(same)
        return copies

    def _saved_variables(self) -> Copies:
        return {**self._copies(), **_scale(self._step)}


def load_for_evaluation(model: Model, spec: RunSpec, placement: Any) -> tuple[Checkpoint, list[str]]:
    """Load the newest intact checkpoint's variables and statistics into a placement, on any devices.

    Returns the checkpoint and remarks. If it holds separate trainings, the first one is loaded.
    Raises InputError if there is no checkpoint, or it is from another model.
    """
    checkpoint, damaged = files.to_evaluate(spec, model.classes)
    remarks, header = list(damaged), checkpoint.header
    if header.alone and header.places > 1:
        remarks.append(f"The checkpoint holds {header.places} separate trainings: the first is evaluated.")
    copies = variables_of(model, spec, placement, together=True)
    files.require_shapes(checkpoint, _shapes(copies))
    _restore(checkpoint, copies)
    return checkpoint, remarks


def share(copies: Copies, from_first: Callable[[Iterable[Any]], list[Any]]) -> None:
    """Copy the values of rank 0's variables to the processes of the other hosts."""
    for variables, value in zip(
        copies.values(), from_first(variables[0] for variables in copies.values()), strict=True
    ):
        for variable in variables:
            with tf.device(variable.device):
                variable.assign(value)


def variables_of(model: Model, spec: RunSpec, placement: Any, *, together: bool = False) -> Copies:
    """Return the names of all variables and statistics, each with its copies, which have the same value.

    Independent towers have separate names. `together`: use one name, because all get the same values.
    """
    copies: Copies = {}
    for kind, specs, places in (
        ("variables", model.variables, placement.places),
        ("state", model.state, placement.states),
    ):
        names = files.names_of([spec.name for spec in specs])
        for place, sets in _sets(spec, places, together=together):
            for name, *same in zip(names, *sets, strict=True):
                copies[f"{kind}/{place}/{name}"] = list(same)
    return copies


def _sets(
    spec: RunSpec, places: Sequence[Any], *, together: bool = False
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yield the sets with different values, as (place, copies of the set)."""
    if spec.variable_update == "independent" and not together:
        for place, variables in enumerate(places):
            yield place, [variables]
    elif places:
        yield 0, places


def _scale(step: Stepper) -> Copies:
    scales = [] if step.scale is None else step.scale.variables
    return {f"scale/{number}": [variable] for number, variable in enumerate(chain.from_iterable(scales))}


def _shapes(copies: Copies) -> dict[str, tuple[int, ...]]:
    return {name: tuple(variables[0].shape) for name, variables in copies.items()}


def _restore(checkpoint: Checkpoint, copies: Copies) -> None:
    for name, array in checkpoint.arrays():
        for variable in copies.get(name, ()):
            with tf.device(variable.device):
                variable.assign(array)
