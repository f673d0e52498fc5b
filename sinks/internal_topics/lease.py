"""Holding the lease of an application id: at any time one process may deliver and seal, and all know who.

Signs of life go to a compacted topic of the service's own, by a transactional producer, so that Kafka itself shuts out
an earlier holder that comes back. No two clocks are compared: a newcomer waits to see whether another sign comes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping

from confluent_kafka import KafkaException, Producer

from conf.errors import ApplicationHeld, BrokerUnreachable, DelaylineError
from conf.kafka.clients import OPEN_TIMEOUT_S
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.lease_record import Lease, claim_after
from sinks.internal_topics.newest_record import newest_value

log = logging.getLogger(__name__)

_KEY = b"lease"
_LOOK_EVERY_S = 0.5
# Of a period: so many signs of life may fail before anybody takes the holder for dead.
_HEARTBEATS_A_PERIOD = 5


def read_lease(options: Mapping[str, str], topic: str) -> Lease | None:
    """Return the newest lease, or None if nobody ever held one. Raises BrokerUnreachable, CheckpointMismatch."""
    value = newest_value(options, topic, 0)
    return None if value is None else Lease.from_bytes(value)


def refuse_others(options: Mapping[str, str], topic: str, fencing_token: int) -> None:
    """Raise ApplicationHeld if a later holder than `fencing_token` has taken the lease."""
    newest = read_lease(options, topic)
    if newest is not None and newest.fencing_token > fencing_token:
        raise _held_by(newest)


class HeldLease:
    """A lease that this process holds, and shows with signs of life from a thread of its own until it is closed.

    Claiming it waits for as long as an earlier holder, which did not release it, had as its period. Raises
    ApplicationHeld if that holder lives, or another is faster; BrokerUnreachable.
    """

    def __init__(self, settings: Settings, command: str) -> None:
        """`command` is what the process was started for, for the errors that others see."""
        self._options = librdkafka_options(settings.kafka)
        self._topic = settings.lease_topic
        self._id = f"{settings.application_id}-lease"
        self._period_s = settings.lease.period / 1000
        self._outage_limit_s = settings.kafka.outage_limit / 1000
        self._producer: Producer | None = None
        self._taken: ApplicationHeld | None = None
        self._lock = threading.Lock()
        last = _last_of_the_silent(self._options, self._topic)
        self.after_a_crash = last is not None and not last.released
        self._lease = claim_after(last, command, settings.lease.period)
        self._confirmed_s = -math.inf
        self._confirm()
        self._closing = threading.Event()
        # Whether the last sign of life of its own accord was not taken.
        self.failing = False
        self._thread = threading.Thread(target=self._live, name="lease", daemon=True)
        self._thread.start()

    @property
    def fencing_token(self) -> int:
        """The number of this holder: that of any later one is higher."""
        return self._lease.fencing_token

    def check_not_taken(self) -> None:
        """Raise ApplicationHeld if it is known that another process holds the lease. Does not wait."""
        if self._taken is not None:
            raise self._taken

    def check(self, limit_s: float | None = None) -> None:
        """Return if this process still holds the lease; asks the broker if it has not done so for half a period.

        To be called before anything that only the holder may do: this process may have been stopped since the last
        time. Raises ApplicationHeld, or BrokerUnreachable when the broker has given no answer for `limit_s`: without
        one for as long as an outage is waited for.
        """
        self._require_confirmed(_clock_s() - self._period_s / 2, self._outage_limit_s if limit_s is None else limit_s)

    def check_now(self) -> None:
        """As `check`, and always asks the broker: before what does harm if another holder has gone on meanwhile."""
        self._require_confirmed(_clock_s(), self._outage_limit_s)

    def _require_confirmed(self, since_s: float, limit_s: float) -> None:
        """Return once the broker has confirmed the lease at `since_s` or after it."""
        deadline_s = _clock_s() + limit_s
        while self._confirmed_s < since_s:
            try:
                self._confirm()
            except BrokerUnreachable:
                if _clock_s() > deadline_s:
                    raise
                time.sleep(_LOOK_EVERY_S)
        self.check_not_taken()

    def close(self) -> None:
        """Release it, so that the next process need not wait. One that the broker does not take is left to expire."""
        self._closing.set()
        self._thread.join(self._period_s)
        if self.failing or self._thread.is_alive():
            log.warning("the lease was not released, since the broker does not answer: it expires by itself")
            return
        try:
            if self._taken is None:
                self._confirm(released=True)
        except (ApplicationHeld, BrokerUnreachable) as problem:
            log.warning("the lease was not released: %s", problem)

    def _live(self) -> None:
        while not self._closing.wait(self._period_s / _HEARTBEATS_A_PERIOD):
            try:
                self._confirm()
                self.failing = False
            except ApplicationHeld:
                return
            except DelaylineError as problem:
                # Whatever it is, a topic that was deleted or a record that is none: a later sign may pass.
                if not self.failing:
                    log.warning("no sign of life could be given: %s", problem)
                self.failing = True

    def _confirm(self, released: bool = False) -> None:
        """Give a sign of life. Raises ApplicationHeld, and will from then on, or BrokerUnreachable."""
        with self._lock:
            self.check_not_taken()
            begun_s = _clock_s()
            heartbeat = self._lease.next_heartbeat(released)
            try:
                self._write(heartbeat)
            except KafkaException as problem:
                # Fenced, timed out, or cut off: whichever, another producer can go on if nobody else took the lease.
                self._producer = None
                self._check_claim()
                raise BrokerUnreachable(f"the lease in {self._topic} could not be renewed: {problem}") from problem
            self._lease, self._confirmed_s = heartbeat, begun_s

    def _write(self, lease: Lease) -> None:
        if self._producer is None:
            # Before, so as not to shut a later holder out; and after, when no other can claim unseen.
            self._check_claim()
            self._producer = self._open()
            self._check_claim()
        self._producer.begin_transaction()
        self._producer.produce(self._topic, lease.to_bytes(), _KEY, 0)
        self._producer.commit_transaction(self._period_s)

    def _open(self) -> Producer:
        timeout_ms = str(int(self._period_s * 1000))
        own = {"transactional.id": self._id, "transaction.timeout.ms": timeout_ms, "linger.ms": "0"}
        producer = Producer({**self._options, **own})
        producer.init_transactions(max(self._period_s, OPEN_TIMEOUT_S))
        return producer

    def _check_claim(self) -> None:
        newest = read_lease(self._options, self._topic)
        if (
            newest is not None
            and newest.fencing_token >= self._lease.fencing_token
            and not newest.is_of_claim(self._lease)
        ):
            self._taken = _held_by(newest)
            raise self._taken


def _clock_s() -> float:
    """Tell the time by a clock that nobody sets, and that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _last_of_the_silent(options: Mapping[str, str], topic: str) -> Lease | None:
    """Return the last lease once it is certain that its holder is gone: released, or silent for its period."""
    last = read_lease(options, topic)
    if last is None or last.released:
        return last
    log.info("waiting up to %.0f s for a sign of life of %s", last.period_ms / 1000, last.holder)
    deadline_s = time.monotonic() + last.period_ms / 1000
    while time.monotonic() < deadline_s:
        time.sleep(_LOOK_EVERY_S)
        now = read_lease(options, topic)
        if now is not None and now.released:
            return now
        if now is not None and now != last:
            raise _held_by(now)
    return last


def _held_by(lease: Lease) -> ApplicationHeld:
    return ApplicationHeld(
        f"{lease.holder} holds the lease of this application id, and it alone may deliver and seal. "
        "Stop it first, or take another application_id"
    )
