"""What an input has to say only when it has run: the records that were left out."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from gputopo.launch.train.inputs.source import Source
from gputopo.values.events import Event, Noticed


@contextmanager
def told(source: Source, emit: Callable[[Event], None]) -> Iterator[Source]:
    """Close the source at the end, and tell what it has to say more than at the beginning."""
    with closing(source):
        before = source.says
        yield source
        for said in source.says:
            if said not in before:
                emit(Noticed(time_s=time.time(), says=said))
