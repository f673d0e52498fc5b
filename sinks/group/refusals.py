"""The errors that keep a process out of its consumer group.

A client that its group refuses retries every few seconds, forever and silently.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from confluent_kafka import KafkaError

from conf.errors import MembershipRefused
from sinks.group.groups import Group

log = logging.getLogger(__name__)

# The least that a broker allows by default. The parts of a process that dies wait this long for their next owner.
SESSION_MS = 6_000
# Longer than a process that has died counts as a member, and several tries to join.
REFUSED_LIMIT_S = 20.0
# Two errors that are further apart are two causes: a client tries again every two or three seconds.
_GAP_S = 10.0
_REMEDIES = {
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: (
        "a consumer in the group is not a {process} of Delayline. Find it with `kafka-consumer-groups.sh "
        "--describe --members`, and stop it"
    ),
    KafkaError.INVALID_SESSION_TIMEOUT: (
        f"set group.min.session.timeout.ms of the brokers to at most {SESSION_MS}, and "
        f"group.max.session.timeout.ms to at least {SESSION_MS}"
    ),
    KafkaError.GROUP_MAX_SIZE_REACHED: "raise group.max.size of the brokers, or run one {process} less",
}


class Refusals:
    """The errors by which a group keeps a process out."""

    def __init__(
        self, group: Group, member: str, limit_s: float, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`limit_s` is for how long a broker may refuse the process before `note` raises."""
        self._group, self._member, self._limit_s, self._clock_s = group, member, limit_s, clock_s
        self._warned: set[int] = set()
        # Since when the errors come without a gap, and the newest one.
        self._since_s = self._last_s = 0.0
        self._sentence: str | None = None

    @property
    def sentence(self) -> str | None:
        """The error that keeps the process out now, or None."""
        return self._sentence if self._clock_s() < self._last_s + _GAP_S else None

    def note(self, error: KafkaError) -> None:
        """Log `error`, once as long as it keeps coming. Raises MembershipRefused if brokers refuse for too long.

        Errors of the client itself, such as brokers that do not answer, never end the process.
        """
        now_s = self._clock_s()
        if self.sentence is None:
            self._warned.clear()
            self._since_s = now_s
        self._last_s = now_s
        remedy = _REMEDIES.get(error.code())
        if remedy is None:
            self._sentence = f"{self._member} cannot join or stay in group {self._group.id}: {error.str()}"
        else:
            remedy = remedy.format(process=self._group.process)
            self._sentence = f"group {self._group.id} refuses {self._member}: {error.str()}. To fix this, {remedy}"
        if error.code() not in self._warned:
            self._warned.add(error.code())
            log.warning("%s", self._sentence)
        if error.code() > 0 and now_s - self._since_s >= self._limit_s:
            raise MembershipRefused(self._sentence)

    def joined(self) -> None:
        """Note that the group has taken the process."""
        self._sentence = None
