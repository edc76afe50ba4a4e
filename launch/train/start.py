"""What had come before a run in its process, and the event that tells it once the run has been built."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gputopo.launch.train.inputs.source import Source
from gputopo.values.events import Event, ModelBuilt


@dataclass(frozen=True)
class Start:
    """`import_s`: seconds that TensorFlow took to load. `versions`: of what was loaded, and its settings."""

    import_s: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)

    def tell_built(
        self,
        source: Source,
        emit: Callable[[Event], None],
        began: float,
        *,
        parameters: int = 0,
        says: Sequence[str] = (),
    ) -> None:
        """Tell that all stands which the run needs. `began`: reading of time.perf_counter before."""
        emit(
            ModelBuilt(
                time_s=time.time(),
                parameters=parameters,
                parameter_bytes=4 * parameters,
                import_s=self.import_s,
                build_s=time.perf_counter() - began,
                versions=dict(self.versions),
                says=(*says, *source.notices),
                input=dict(source.describe()),
            )
        )


UNTOLD = Start()  # of a run in a process that measured nothing of its own start, as in tests
