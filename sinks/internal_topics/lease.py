"""Holding the lease of an application id: at any time one known process may deliver and seal.

The holder writes heartbeats to a compacted internal topic with a transactional producer, so that Kafka itself fences
an earlier holder that comes back. No two clocks are compared for it: a new process waits for another heartbeat of the
holder. The broker stamps the heartbeats, and so says what time it has.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from conf.errors import ApplicationHeld, BrokerUnreachable, DelaylineError
from conf.kafka.client_log import client_log
from conf.kafka.clients import NO_SIZE_LIMIT, OPEN_TIMEOUT_S
from conf.kafka.error_codes import FENCED
from conf.kafka.options import librdkafka_options
from conf.kafka.repeated_commit import repeat_backoff, sent_once
from conf.kafka.rights import init_transactions, is_refusal, right_missing
from conf.settings import Settings
from sinks.internal_topics.lease_record import Lease, claim_after
from sinks.internal_topics.newest_record import newest_value
from sinks.internal_topics.transactional_ids import transactional_id

log = logging.getLogger(__name__)

_KEY = b"lease"
_POLL_S = 0.5
# Several, so that a single heartbeat may fail before another process takes the holder for dead.
_HEARTBEATS_PER_PERIOD = 5
# How many processes at once may claim the lease in vain before a heartbeat counts as failed, and one more.
_TRIES_IF_FENCED = 5


def read_lease(options: Mapping[str, str], topic: str, after_fencing: bool = False) -> Lease | None:
    """Return the newest lease, or None if there never was one. Raises BrokerUnreachable, CheckpointMismatch.

    `after_fencing` says that the holder is fenced (`newest_value`).
    """
    value = newest_value(options, topic, 0, after_fencing)
    return None if value is None else Lease.from_bytes(value)


def refuse_others(options: Mapping[str, str], topic: str, fencing_token: int) -> None:
    """Raise ApplicationHeld if a later holder than the one with `fencing_token` has taken the lease."""
    newest = read_lease(options, topic)
    if newest is not None and newest.fencing_token > fencing_token:
        raise _held_by(newest)


class HeldLease:
    """A lease that this process holds. A thread writes its heartbeats until it is closed.

    If the previous holder did not release the lease, claiming it waits for that holder's period. Raises ApplicationHeld
    if that holder is alive, or another process claims the lease first; BrokerUnreachable.

    Its state is what the thread and the callers share: the producer, and what the broker has confirmed last.
    """

    def __init__(self, settings: Settings, command: str) -> None:
        """Claim the lease. `command` names this process's command in the errors of other processes."""
        options = librdkafka_options(settings.kafka)
        self._options = options | repeat_backoff(options)
        self._topic = settings.lease_topic
        self._id = transactional_id(settings.application_id, "lease")
        self._period_s = settings.lease.period / 1000
        self._outage_limit_s = settings.kafka.outage_limit / 1000
        self._producer: Producer | None = None
        self._taken: ApplicationHeld | None = None
        # The broker's stamp on the last heartbeat, epoch ms, and when that was sent.
        self._stamped: tuple[int, float] | None = None
        self._lock = threading.Lock()
        last = _wait_for_holder(self._options, self._topic)
        self._lease = claim_after(last, command, settings.lease.period)
        # Whether an earlier holder may be paused, not dead. The caller must fence it, and then call `note_fenced`.
        self.after_a_crash = self._lease.unfenced
        self._confirmed_s = -math.inf
        # Again and again: another process that claims the lease at the same time fences this one before it has written
        # its claim, and says with that claim who it is.
        self._require_confirmed(_clock_s(), self._period_s)
        self._closing = threading.Event()
        # Whether the thread's last heartbeat failed.
        self.failing = False
        self._thread = threading.Thread(target=self._send_heartbeats, name="lease", daemon=True)
        self._thread.start()

    @property
    def fencing_token(self) -> int:
        """The number of this holder. Any later holder has a higher one."""
        return self._lease.fencing_token

    @property
    def confirmed_ago_s(self) -> float:
        """How long ago the broker last confirmed that this process holds the lease."""
        return _clock_s() - self._confirmed_s

    @property
    def broker_ms(self) -> float | None:
        """The broker's clock, epoch ms: its last stamp, and the time since then by this host's monotonic clock.

        It is too high by no more than that heartbeat took. None if the lease topic has no stamps of the broker.
        """
        if self._stamped is None:
            return None
        stamp_ms, sent_s = self._stamped
        return stamp_ms + (_clock_s() - sent_s) * 1000

    def check_not_taken(self) -> None:
        """Raise ApplicationHeld if another process is known to hold the lease. Does not ask the broker."""
        if self._taken is not None:
            raise self._taken

    def check(self, limit_s: float | None = None) -> None:
        """Return if this process still holds the lease; asks the broker if its last answer is older than half a period.

        Call this before anything that only the holder may do: the process may have been paused since the last check.
        Raises ApplicationHeld, or BrokerUnreachable if the broker does not answer for `limit_s` seconds (by default
        `kafka.outage_limit`).
        """
        self._require_confirmed(_clock_s() - self._period_s / 2, self._outage_limit_s if limit_s is None else limit_s)

    def check_now(self) -> None:
        """Check as `check` does, but always ask the broker. Use before irreversible changes."""
        self._require_confirmed(_clock_s(), self._outage_limit_s)

    def _require_confirmed(self, since_s: float, limit_s: float) -> None:
        """Return once the broker has confirmed the lease at or after `since_s`. Raises as `check` does."""
        deadline_s = _clock_s() + limit_s
        while self._confirmed_s < since_s:
            try:
                self._confirm()
            except BrokerUnreachable as problem:
                left_s = deadline_s - _clock_s()
                if left_s < 0:
                    raise
                log.warning("lease: Kafka does not answer; retrying for %.0f s more: %s", left_s, problem)
                time.sleep(_POLL_S)
        self.check_not_taken()

    def note_fenced(self) -> None:
        """Note that no earlier holder can write to the table any more. Until then, each holder is one after a crash."""
        with self._lock:
            self._lease = replace(self._lease, unfenced=False)

    def close(self) -> None:
        """Release the lease, so that the next process need not wait. If the broker does not answer, it expires."""
        self._closing.set()
        self._thread.join(self._period_s)
        if self.failing or self._thread.is_alive():
            log.warning("could not release the lease because the broker does not answer. It will expire")
            return
        try:
            if self._taken is None:
                self._confirm(released=True)
        except (ApplicationHeld, BrokerUnreachable) as problem:
            log.warning("could not release the lease: %s", problem)

    def _send_heartbeats(self) -> None:
        while not self._closing.wait(self._period_s / _HEARTBEATS_PER_PERIOD):
            try:
                self._confirm()
                self.failing = False
            except ApplicationHeld:
                return
            except DelaylineError as problem:
                # Whatever the problem is, such as a deleted topic or an invalid record: a later heartbeat may succeed.
                if not self.failing:
                    log.warning("the heartbeat of the lease failed: %s", problem)
                self.failing = True

    def _confirm(self, released: bool = False) -> None:
        """Write a heartbeat. Raises BrokerUnreachable, RightMissing; ApplicationHeld, then and on every later call."""
        with self._lock:
            self.check_not_taken()
            begun_s = _clock_s()
            heartbeat = self._lease.next_heartbeat(released)
            try:
                self._write_unless_taken(heartbeat, begun_s)
            except KafkaException as problem:
                if is_refusal(problem.args[0]):
                    raise right_missing("Write", f"topic {self._topic}") from problem
                raise BrokerUnreachable(f"could not renew the lease in {self._topic}: {problem}") from problem
            self._lease, self._confirmed_s = heartbeat, begun_s

    def _write_unless_taken(self, lease: Lease, sent_s: float) -> None:
        """Write `lease`, even if failed claims of other processes fence this producer: each process does so once."""
        for left in reversed(range(_TRIES_IF_FENCED)):
            try:
                self._write(lease, sent_s)
                return
            except KafkaException as problem:
                # Whether fenced, timed out or disconnected: a new producer can go on if no other process has the lease.
                self._producer = None
                self._check_claim()
                if left == 0 or problem.args[0].code() not in FENCED:
                    raise

    def _write(self, lease: Lease, sent_s: float) -> None:
        def take_stamp(error: KafkaError | None, message: Message) -> None:
            kind, stamp_ms = message.timestamp()
            if error is None and kind == TIMESTAMP_LOG_APPEND_TIME:
                self._stamped = stamp_ms, sent_s

        if self._producer is None:
            # Check before, so as not to fence a later holder; and after, when no claim can go unseen any more.
            self._check_claim()
            self._producer = self._open()
            self._check_claim(after_fencing=True)
        self._producer.begin_transaction()
        self._producer.produce(self._topic, lease.to_bytes(), _KEY, 0, on_delivery=take_stamp)
        begun_s = time.monotonic()
        self._producer.commit_transaction(self._period_s)
        if not sent_once(begun_s, self._options):
            # The next heartbeat opens a new one.
            self._producer = None

    def _open(self) -> Producer:
        timeout_ms = str(int(self._period_s * 1000))
        own = {"transactional.id": self._id, "transaction.timeout.ms": timeout_ms, "linger.ms": "0"}
        producer = Producer({**self._options, **NO_SIZE_LIMIT, **own, "logger": client_log(log)})
        init_transactions(producer, self._id, max(self._period_s, OPEN_TIMEOUT_S))
        return producer

    def _check_claim(self, after_fencing: bool = False) -> None:
        """Raise ApplicationHeld, and remember it, if another process has claimed the lease."""
        newest = read_lease(self._options, self._topic, after_fencing)
        if (
            newest is not None
            and newest.fencing_token >= self._lease.fencing_token
            and not newest.is_of_claim(self._lease)
        ):
            self._taken = _held_by(newest)
            raise self._taken


def _clock_s() -> float:
    """Return the seconds of a monotonic clock; where the system has one, of a clock that counts while suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _wait_for_holder(options: Mapping[str, str], topic: str) -> Lease | None:
    """Return the last lease once its holder has released it, or has not written a heartbeat for its period."""
    last = read_lease(options, topic)
    if last is None or last.released:
        return last
    log.info("waiting up to %.0f s for a heartbeat of %s", last.period_ms / 1000, last.holder)
    deadline_s = time.monotonic() + last.period_ms / 1000
    while time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        now = read_lease(options, topic)
        if now is not None and now.released:
            return now
        if now is not None and now != last:
            raise _held_by(now)
    return last


def _held_by(lease: Lease) -> ApplicationHeld:
    return ApplicationHeld(
        f"{lease.holder} holds the lease of this application id, and only the holder may deliver and seal. "
        "Stop it first, or use another application_id"
    )
