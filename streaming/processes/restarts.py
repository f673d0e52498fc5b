"""When a process that has ended is started again, and whether it fails too often. Without a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass

from conf.errors import BrokerUnreachable, DelaylineError

# After so many errors in a row an operator is needed.
MOST_ERRORS = 4


@dataclass(frozen=True)
class Pauses:
    """How long a supervisor waits, in seconds.

    - `longest_s`: before the next start of a process that has ended again and again
    - `forward_s`: before the next start of a forwarder that has failed too often: batches do its work meanwhile
    - `healthy_s`: a process that has run for so long, and for twice as long as it waits for brokers, counts its ends
      from 0 again
    - `calm_s`: when all processes have run for so long, a spare one is started: no start is slower for it
    """

    longest_s: float = 10.0
    forward_s: float = 60.0
    healthy_s: float = 60.0
    calm_s: float = 10.0


USUAL_PAUSES = Pauses()


@dataclass
class Restarts:
    """The starts and ends of one process. Instants are monotonic, in seconds.

    - `ends`: how often in a row it ended, for the pause before the next start
    - `errors`: how many of these ends need an operator if they continue
    - `away_since_s`: when it first found no broker, if it has ended in this way since then
    """

    started_s: float = 0.0
    next_start_s: float = 0.0
    ends: int = 0
    errors: int = 0
    away_since_s: float | None = None

    def count(self, error: DelaylineError, is_error: bool, now_s: float, pauses: Pauses, outage_limit_s: float) -> bool:
        """Count an end, or a start that failed, and set `next_start_s`. Return whether it has failed too often.

        Brokers that are away count as an error once they are for longer than a job waits for them (`outage_limit_s`).
        """
        # An error may take as long to come as the process waits for brokers.
        if now_s - self.started_s > max(pauses.healthy_s, 2 * outage_limit_s):
            self.ends = self.errors = 0
        # The first one is started again at once.
        self.next_start_s = now_s + min(pauses.longest_s, float(self.ends**2))
        self.ends += 1
        is_away = type(error) is BrokerUnreachable
        self.away_since_s = (self.away_since_s or now_s) if is_away else None
        if not is_error:
            self.errors = 0
        elif self.away_since_s is None or now_s - self.away_since_s > outage_limit_s:
            self.errors += 1
        return self.errors >= MOST_ERRORS
