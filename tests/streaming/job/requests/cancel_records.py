"""The parts of the model of requests: records, their schedules, the answers to them, and the holders of names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, islice, takewhile
from typing import NamedTuple

from state.cancel import MessageId

# An occurrence of a message that repeats: the id of the message, and the number.
Occurrence = tuple[str, int, int, int]


class Plan(NamedTuple):
    """When a message comes again: its interval, the largest number of times, and the rule for missed occurrences."""

    every_ms: int
    most: int | None = None
    missed: str = "one"

    def comes(self, number: int, due_ms: int, clock_ms: int) -> Iterator[tuple[int, int]]:
        """Yield each occurrence that comes from `number` on, which is due at `due_ms`, and when it is due.

        An occurrence that is due before the clock of the batch is missed.
        """
        missed = list(takewhile(lambda at_ms: at_ms < clock_ms, count(due_ms, self.every_ms)))
        later = count(due_ms + len(missed) * self.every_ms, self.every_ms)
        # The very first one always comes.
        most_late = {"all": None, "one": 1, "none": int(number == 1)}[self.missed]
        late = missed[:most_late]
        left = None if self.most is None else self.most + 1 - number
        return islice(enumerate(chain(late, later), number), left)


class Record(NamedTuple):
    """A record of an input topic.

    - `due_ms`: when its message is due; None for a cancel. Epoch ms
    - `is_bad`: whether it goes to the dead-letter topic
    - `asked`: the message that it cancels or replaces by its id, or wants to be due at once
    - `condition`: the condition of a replacement by id: "waiting" or "always"
    - `name`: the name of the message, or of the message that it cancels
    - `keeps`: whether its input topic keeps the first message of a name, and does not replace it
    - `takes_time`: whether a message that replaces another one of its input topic is due when that one was
    - `published_ms`: when it was published. Epoch ms
    - `wants_answer`: whether a message with a name asks for an answer
    - `delivers`: whether it wants a message to be due at once
    - `plan`: how the message repeats, if it does
    """

    id: MessageId
    due_ms: int | None = None
    is_bad: bool = False
    asked: MessageId | None = None
    condition: str | None = None
    name: str | None = None
    keeps: bool = False
    takes_time: bool = False
    published_ms: int = 0
    wants_answer: bool = False
    delivers: bool = False
    plan: Plan | None = None

    @property
    def requests(self) -> bool:
        """Whether it asks for another message."""
        return not self.is_bad and (self.asked is not None or self.name is not None)


class Answer(NamedTuple):
    """The answer to a request: the message that it is about, if any, and for a replacement whether it is accepted.

    `result` and `reason` are codes. `occurrence` is the last one that comes of a message that repeats.
    """

    about: MessageId | None
    result: str
    reason: str
    accepted: bool | None = None
    occurrence: int | None = None


class Holder(NamedTuple):
    """The message that has a name, its due time, and whether it keeps both because no request has asked for it.

    Where messages keep names, later ones are dropped. Where they take due times over, the next one does.
    """

    id: MessageId
    due_ms: int
    keeps: bool
