"""How long a release process waits where no setting says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Waits:
    """Times in s.

    - `confirm`: between two looks at a topic that seems closed. Brokers hear of a new topic or right within that time
    - `look_again`: until a closed topic is looked at again, if there are messages for it
    - `slow`: for the confirmation of records, until their topics are looked for: a client waits for a missing topic as
      if its broker were away
    - `abort`: for the end of a transaction that is aborted
    - `linger`: of a client for more records, which is longer than filling a group takes on a busy host
    - `fresh`: the maximum age of a topic's known limits when a record is refused by them
    - `idle`: without pending messages, until the position moves to the end of the log; not after each of frequent ones
    - `count`: between two counts of the backlog
    - `rates`: how long rates hold, by the partitions that the topics had
    """

    confirm: float = 3.0
    look_again: float = 5.0
    slow: float = 5.0
    abort: float = 5.0
    linger: float = 2.0
    fresh: float = 1.0
    idle: float = 1.0
    count: float = 1.0
    rates: float = 10.0


DEFAULT_WAITS = Waits()
