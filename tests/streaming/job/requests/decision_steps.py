"""The steps of a run of whole batches: the records of each batch, and its settings."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from state.checkpoint.batch_settings import BatchSettings, DelayPolicy
from state.names import FROM_HEADER, KEEP, KEEP_TIME, REPLACE
from tests.messages import PARTITIONS, some_batch_settings
from tests.streaming.job.requests.cancel_records import Plan

TOPIC, RESULTS, CHECKPOINT = "delayline-in", "delayline-results", "c"
# The first message of a name stays.
KEEPING = "delayline-keeping"
# The newest message of a name comes out, at the due time of the first one.
TIMED = "delayline-timed"
# Each step says which of these modes it has.
CHANGING = "delayline-changing"
TOPICS = {"keep": KEEPING, "timed": TIMED, "changing": CHANGING}
HORIZON_MS = 1_000
# Small buckets and segments, so that most waiting messages are sealed.
BATCH_SETTINGS = some_batch_settings(
    bucket_max_messages=2,
    segment_max_messages=3,
    index_precision_bits=4,
    policy=DelayPolicy(names=FROM_HEADER, repeats=True, repeat_ms=1),
    policies={
        KEEPING: DelayPolicy(names=FROM_HEADER, name_mode=KEEP, repeats=True, repeat_ms=1),
        TIMED: DelayPolicy(names=FROM_HEADER, name_mode=KEEP_TIME),
    },
    partitions=PARTITIONS | {RESULTS: 3},
)
SHARDS = BATCH_SETTINGS.shards


class Step(NamedTuple):
    """A batch: so long after the one before, with records, some of them in overflow groups; and what happens then.

    A record is its kind, its input partition, the delay of its message, the number of the record that it asks for, and
    a name. The number counts back from the last message, of this batch too, and then from the last record that is not a
    message. The first word of a kind may be one of `TOPICS`. A record with a kind that ends with "late" is published
    after the clock of its batch. A message of a kind with "repeats" comes again. The number that counts back says how
    often, and 0 stands for no end. The last word is the rule for missed occurrences. `mode` is the mode of `CHANGING`.
    Where that is `KEEP_TIME`, nothing repeats.
    """

    after_ms: int
    records: list[tuple[str, int, int, int, str]]
    overflows: bool
    then: str
    mode: str = REPLACE

    def plan(self, kind: str, back: int) -> Plan | None:
        """Return how the message of a record repeats."""
        if "repeats" not in kind or (kind.startswith("changing") and self.mode == KEEP_TIME):
            return None
        return Plan(_EVERY_MS, back or None, kind.rpartition(" ")[2])

    def mode_of(self, topic: str) -> str:
        """Return the mode of an input topic: which of several messages of a name waits."""
        return {KEEPING: KEEP, TIMED: KEEP_TIME, CHANGING: self.mode}.get(topic, REPLACE)

    @property
    def settings(self) -> BatchSettings:
        """The settings of the batch."""
        policy = replace(BATCH_SETTINGS.policy, name_mode=self.mode, repeats=self.mode != KEEP_TIME)
        return replace(BATCH_SETTINGS, policies={**BATCH_SETTINGS.policies, CHANGING: policy})


_EVERY_MS = 4_000
