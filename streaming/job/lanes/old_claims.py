"""Deletes claims that neither this job nor a later rebuild needs.

A rebuild reads all records again that the input topics still have, starting at the origin of the checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from confluent_kafka import KafkaException

from conf.errors import KafkaError
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.lanes.deletion import delete_claims
from sinks.topics.input_ends import input_bounds
from state.checkpoint.input_ids import newest_ids, same_topic
from state.checkpoint.origin import Offsets, as_offsets
from state.checkpoint.progress import BatchSpan

log = logging.getLogger(__name__)

_EVERY_S = 600.0


class OldClaims:
    """Deletes old claims now and then, in the background. A failure costs space until the next time."""

    def __init__(self, settings: Settings, every_s: float = _EVERY_S) -> None:
        self._settings, self._every_s = settings, every_s
        self._begun_s = time.monotonic()
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="claims")
        self._running = Future[None]()
        self._running.set_result(None)

    def before_batch(self, span: BatchSpan) -> None:
        """Begin to delete old claims, if it is time. `span` is the batch that begins."""
        if time.monotonic() > self._begun_s + self._every_s and self._running.done():
            self._begun_s = time.monotonic()
            ids, known = newest_ids(span.input_ids), span.origin.input_ids
            # Offsets of a topic that was created again since are about the old topic.
            origin = {
                topic: own for topic, own in span.origin.offsets.items() if same_topic(known, span.input_ids, topic)
            }
            self._running = self._threads.submit(self._delete, origin, ids, span.origin.epoch)

    def close(self) -> None:
        """Begin no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _delete(self, origin: Offsets, ids: Mapping[str, str], epoch: int) -> None:
        try:
            needed = as_offsets(
                {
                    (topic, number): max(first, origin.get(topic, {}).get(str(number), 0))
                    for (topic, number), (first, _) in input_bounds(self._settings).items()
                }
            )
            # Nobody needs claims about former input topics.
            own = {topic: ids[topic] for topic in needed if topic in ids}
            delete_claims(self._settings, librdkafka_options(self._settings.kafka), needed, own, epoch)
        except (KafkaException, KafkaError) as problem:
            log.warning("could not delete old claims from %s: %s", self._settings.claims_topic, problem)
