"""Waits until claims decide all records of a batch, and takes over lanes if their owners decide nothing.

Usually the claims are already there: forwarders are half a second ahead. If the forwarder of a lane is dead or paused,
the lane makes no progress. Then the job takes the lane: it fences the owner, and claims the records of the batch
itself. A forwarder that comes back fences the job in turn, and continues after the job's claims. So each record is
decided once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaException

from conf.errors import BrokerUnreachable, CheckpointMismatch
from conf.failpoints import failpoint
from conf.kafka.error_codes import FENCED_ONCE, is_outage
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.lanes.claims_reader import ClaimsReader
from sinks.lanes.writer import LaneTaken, LaneWriter
from state.checkpoint.input_ids import newest_ids
from state.checkpoint.origin import InputIds, Offsets
from state.checkpoint.progress import BatchSpan, Ranges
from state.claims import JOB, Claim, check_uncut
from state.decided import Claims
from state.lanes import lane_of
from state.taken import Taken

log = logging.getLogger(__name__)

_POLL_S = 0.05
# Four times a second, a forwarder claims the records that it has read.
_STILL_S = 2.0

LOST_CLAIMS_REMEDY = (
    "Restore the topic. Or start the job once without forwarders (forward.processes=0, "
    "forward.elsewhere=false): it then delivers the messages a second time that forwarders claimed since "
    "the last batch"
)

# Topic and number of an input partition.
Source = tuple[str, int]


class ClaimWatch:
    """The claims about the records of batches. Only the query's thread may use it, except for `due_before_ms`."""

    def __init__(
        self,
        settings: Settings,
        lanes: int,
        epoch: int,
        read: Offsets,
        ids: InputIds,
        check_lease: Callable[[], None] = lambda: None,
    ) -> None:
        """Follow claims of `epoch` about records at or above the offsets `read`. Each topic has its last id of `ids`.

        Without `lanes`, forwarders decide nothing more, and no batch waits for them. `check_lease` raises if this
        process no longer holds the lease: only its holder takes lanes over. Raises BrokerUnreachable, KafkaException,
        CheckpointMismatch, FormatMismatch.
        """
        self._settings = settings
        self._lanes, self._epoch = lanes, epoch
        self._check_lease = check_lease
        self._options = librdkafka_options(settings.kafka)
        self._claims = Claims(epoch)
        # Leave out former input topics. Nobody reads them, so all their claims would be about unread records.
        own = {topic: own for topic, own in newest_ids(ids).items() if topic in settings.topics.input or topic in read}
        # The newest claim that was read of each lane.
        self._newest: dict[int, Claim] = {}
        # The writers of the lanes that the job has taken, and may have lost since.
        self._writers: dict[int, LaneWriter] = {}
        # For each partition that the last batch waited for: how far claims had decided it, and since when, by the
        # monotonic clock. Not by lane: its owner may still read all other partitions, from other brokers or by other
        # terms.
        self._waited: dict[Source, tuple[int, float]] = {}
        self._is_urgent = False
        try:
            self._reader = ClaimsReader(settings, self._options, read, own, epoch)
            try:
                # Read all lanes: a partition may have been in another lane, with newer claims about it.
                self._take(self._reader.read_there())
            except BaseException:
                self._reader.close()
                raise
        except KafkaException as problem:
            if not is_outage(problem.args[0]):
                raise
            raise BrokerUnreachable(f"cannot read the claims of forwarders: {problem}") from problem

    @property
    def due_before_ms(self) -> int:
        """The instant, epoch ms, before which all messages are due that forwarders have taken."""
        return self._claims.due_before_ms

    @property
    def taken_over(self) -> dict[int, bool]:
        """For each open lane, whether the job has taken it over and no forwarder has claimed anything in it since."""
        return {lane: lane in self._writers for lane in range(self._lanes)}

    @property
    def is_forwarded(self) -> bool:
        """Whether each lane has had a forwarder recently, so that batches need not be frequent."""
        return self._lanes > 0 and not self._writers

    def wait(self, span: BatchSpan) -> Taken:
        """Wait until claims decide the records of the batch of `span`. Return which of them forwarders have taken.

        A replay gets the same. Waits through an outage. Raises BrokerUnreachable after `kafka.outage_limit`,
        CheckpointMismatch if a forwarder has found a cut partition in a topic that the batch reads, and the errors of
        `LaneWriter`.
        """
        retry = BrokerRetry(f"batch {span.batch_id}, claims", self._settings.kafka.outage_limit)
        read = span.ranges()
        for (topic, number), (start, _) in read.items():
            self._claims.forget_below(_id(span, topic), number, start)
        self._is_urgent = False
        self._waited.clear()
        while True:
            try:
                self._take(self._reader.read(_POLL_S if self._waited else 0))
                if not (undecided := self._undecided(span, read)):
                    break
                for lane, ends in self._still(undecided).items():
                    self._take_over(lane, span, ends)
            except (KafkaException, BrokerUnreachable) as problem:
                retry.wait(problem)
        self.check_ends_of_batch({}, span)
        failpoint("claims-read")
        return self.taken(read, span.input_ids)

    def taken(self, ranges: Ranges, ids: InputIds) -> Taken:
        """Return which records in `ranges` forwarders have taken, by the claims that were read."""
        taken = {
            (topic, number): self._claims.taken(ids[topic][-1], number, start, end)
            for (topic, number), (start, end) in ranges.items()
        }
        return Taken({source: offsets for source, offsets in taken.items() if offsets})

    def look_for_urgent(self, timeout_s: float) -> bool:
        """Wait for claims up to `timeout_s`. Return whether one has left a record for which someone waits.

        Includes claims that arrived since the last batch began to wait. In an outage, no claims arrive.
        """
        if not self._is_urgent:
            try:
                self._take(self._reader.read(timeout_s))
            except KafkaException as problem:
                log.debug("cannot read claims: %s", problem)
                time.sleep(timeout_s)
        return self._is_urgent

    def check_complete(self, read: Offsets, ids: InputIds, lanes: int) -> None:
        """Raise CheckpointMismatch if claims do not decide all that committed batches have read, up to `read`.

        Each of these batches has waited for the claims. Without the claims, forwarders would take the same records
        again. There are `lanes` open lanes. Each began with a claim, and its newest claim is never deleted.
        """
        lacking = [f"all input partitions of lane {lane}" for lane in range(lanes) if lane not in self._newest]
        lacking += [
            f"{topic}/{number} (from {position} up to {end})"
            for topic, own in read.items()
            for number, end in own.items()
            # A partition without records to read has no claims.
            if topic in ids and 0 < (position := self._claims.position(ids[topic][-1], int(number))) < end
        ]
        if lacking:
            raise CheckpointMismatch(
                f"{self._settings.claims_topic} has lost claims about {', '.join(lacking)}. Batches would "
                f"deliver the claimed messages a second time. {LOST_CLAIMS_REMEDY}"
            )

    def check_ends(self, ends: Mapping[Source, int], ids: InputIds) -> None:
        """Raise CheckpointMismatch if claims are about records past the `ends` of input partitions.

        Raises it too if a forwarder has found that a partition is cut: new records may have filled the gap since.
        """
        cuts = [
            f"{topic}/{number} ends at offset {end}, but claims have decided records up to {position}"
            for (topic, number), end in ends.items()
            if topic in ids and (position := self._claims.position(ids[topic][-1], number)) > end
        ]
        inputs = {topic: known for topic, known in newest_ids(ids).items() if topic in self._settings.topics.input}
        for claim in self._newest.values():
            cuts += claim.cuts(inputs) if claim.epoch == self._epoch else []
        check_uncut(cuts)

    def check_ends_of_batch(self, ends: Mapping[Source, int], span: BatchSpan) -> None:
        """Raise CheckpointMismatch as `check_ends` does, but only for topics that the batch of `span` reads.

        Other topics may be gone or created again. That is the remedy for a cut, and a replay reads nothing of them.
        """
        read = span.ranges()
        topics = {topic for topic, _ in read}
        self.check_ends(
            {source: end for source, end in ends.items() if source in read},
            {topic: own for topic, own in span.input_ids.items() if topic in topics},
        )

    def close(self) -> None:
        """Close the clients."""
        for writer in self._writers.values():
            writer.close()
        self._reader.close()

    def _take(self, claims: Iterable[tuple[int, Claim]]) -> None:
        """Add `claims`, each with its lane, and keep only the newest claim of each lane."""
        for lane, claim in claims:
            last = self._newest.get(lane)
            follows = last is not None and claim.follows(last)
            if last is not None and not follows:
                lost = (
                    f"claims of lane {lane} are missing in {self._settings.claims_topic}: {last} is followed "
                    f"by {claim}. The messages that forwarders claimed are unknown"
                )
                if self._lanes:
                    raise CheckpointMismatch(f"{lost}. {LOST_CLAIMS_REMEDY}")
                # The operator has chosen to accept duplicates.
                log.warning("%s. Messages may be delivered twice", lost)
            self._claims.add(claim, last if follows else None)
            self._newest[lane] = claim
            self._is_urgent |= claim.is_urgent
            writer = self._writers.get(lane)
            # Ignore claims from before the job took the lane.
            if writer is not None and claim.owner != JOB and writer.claim is not None and claim.follows(writer.claim):
                log.info("lane %d has a forwarder again", lane)
                self._writers.pop(lane).close()

    def _undecided(self, span: BatchSpan, read: Ranges) -> dict[Source, int]:
        """Return the offsets up to which claims must still decide. Note since when each position is unchanged."""
        undecided = {}
        for source, (_, end) in read.items() if self._lanes else ():
            position = self._claims.position(_id(span, source[0]), source[1])
            if self._waited.get(source, (-1, 0))[0] != position:
                self._waited[source] = position, time.monotonic()
            if position < end:
                undecided[source] = end
        return undecided

    def _still(self, undecided: Mapping[Source, int]) -> dict[int, dict[Source, int]]:
        """Return, by lane, the partitions in a lane of the job, and those without new claims for a while."""
        still: dict[int, dict[Source, int]] = {}
        for source, end in undecided.items():
            lane = lane_of(*source, self._lanes)
            if lane in self._writers or time.monotonic() > self._waited[source][1] + _STILL_S:
                still.setdefault(lane, {})[source] = end
        return still

    def _take_over(self, lane: int, span: BatchSpan, ends: Mapping[Source, int]) -> None:
        """Claim for the batches the records below `ends` that a lane's owner has not decided.

        After an error the lane's newest claim is read again, by a new writer.
        """
        writer = self._writers.pop(lane, None)
        if writer is None or writer.is_spent:
            if writer is not None:
                writer.close()
            else:
                log.warning(
                    "batch %d: no forwarder claims records of lane %d, such as %s/%d; the job takes the "
                    "lane over",
                    span.batch_id, lane, *next(iter(ends)),
                )  # fmt: skip
            writer = LaneWriter(self._settings, self._options, lane)
            failpoint("lane-fenced")
        newest = writer.claim or Claim(self._epoch)
        ids = {topic: _id(span, topic) for topic, _ in ends}
        left = {source: end for source, end in ends.items() if newest.position(*source, ids[source[0]]) < end}
        try:
            if left:
                # Only now: this process may have been paused until here, while another one continued with newer topics.
                self._check_lease()
                writer.write(newest.next(JOB, left, {}, ids))
                failpoint("lane-claimed")
        except BaseException as problem:
            writer.close()
            # The broker also fences a writer if its transaction was open for too long.
            is_fenced = isinstance(problem, KafkaException) and problem.args[0].code() in FENCED_ONCE
            if not is_fenced and not isinstance(problem, LaneTaken):
                raise
            log.info("a forwarder opens lane %d; batches wait for its claims", lane)
            # The forwarder has some time to decide.
            self._waited.clear()
            return
        self._writers[lane] = writer


def _id(span: BatchSpan, topic: str) -> str:
    return span.input_ids[topic][-1]
