"""How long the hosts of a training wait for one another, in seconds."""

from dataclasses import dataclass

# For all hosts to come, unless told otherwise: batch systems start tasks within seconds, containers pull
# their images before. Ours; torchrun waits 600 s (rendezvous join_timeout), MPI for ever.
JOIN_S = 60.0
# Without a word from a host. Ours: a dead host is to be named within 15 s, and lost packets of a busy network
# are sent again after 0.2, 0.4, ... 3.2 s (TCP_RTO_MIN of Linux), which is 6.2 s after 5 losses in a row.
SILENT_S = 10.0
EVERY_S = 1.0  # between two reports of a host. Ours.
POLL_S = 1.0  # for which rank 0 holds a request to join before it answers "waiting". Ours.
RETRY_S = 0.5  # between attempts to reach a rank 0 that is not there yet. Ours.
REQUEST_S = 5.0  # for one request and its answer, half of SILENT_S. Ours.
CONNECTION_S = 10.0  # for which rank 0 leaves a connection open: twice that. Ours.
END_S = 5.0  # for which rank 0 waits at its end until all hosts have heard of it. Ours.
# For which a host that ends by an error lets rank 0 end first, which has 5 s to end its worker. Ours.
LAST_S = 15.0
EXCUSE_S = 5.0  # for which a host that cannot join tries to reach a rank 0 that is not there yet. Ours.
LOOK_S = 0.25  # between two looks at the hosts' silence. Ours.


@dataclass(frozen=True)
class Patience:
    """How long rank 0 and the other hosts wait for one another, in seconds; see the constants."""

    silent_s: float = SILENT_S
    every_s: float = EVERY_S
    poll_s: float = POLL_S
    retry_s: float = RETRY_S
    request_s: float = REQUEST_S
    connection_s: float = CONNECTION_S
    end_s: float = END_S
    look_s: float = LOOK_S


PATIENCE = Patience()


class Silence:
    """Seconds for which another host has been silent, of those in which this one was not stopped itself.

    Batch systems suspend jobs (SIGSTOP): a look that comes later than `expected_s` after the one before, or
    after the last word of the other host, counts for `expected_s` only. `now_s`: a monotonic clock.
    """

    def __init__(self, now_s: float, *, expected_s: float) -> None:
        self._expected_s = expected_s
        self._looked_s = now_s
        self.seconds = 0.0

    def heard(self, now_s: float) -> None:
        """Note that the other host was heard of."""
        self._looked_s, self.seconds = now_s, 0.0

    def look(self, now_s: float) -> float:
        """Return the seconds of silence until now."""
        self.seconds += min(max(0.0, now_s - self._looked_s), self._expected_s)
        self._looked_s = now_s
        return self.seconds
