"""The inputs of a forwarder, as they were looked up last: the terms, and the present input partitions."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaException

from conf.errors import BrokerUnreachable
from conf.kafka.error_codes import is_outage
from conf.kafka.rights import right_named
from conf.settings import Settings
from sinks.lanes.terms import read_terms
from sinks.topics.topic_ids import PresentTopic, TopicIds
from state.claims import Terms
from state.lanes import lane_of
from streaming.forward.lane import Place

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
# Reading the terms takes a client of its own each time.
_TERMS_EVERY_S = 2.0


@dataclass(frozen=True)
class Inputs:
    """The newest terms, if there are any, and the input topics as they are now."""

    terms: Terms | None = None
    present: Mapping[str, PresentTopic] = field(default_factory=dict)

    def of_lane(self, lane: int) -> list[Place]:
        """Return the partitions of a lane.

        A topic with another id than in the terms has no partitions here. It was deleted and created again, and its
        records may have the ids of old ones. The job decides what to do about it.

        Between two looks a client may go on in the new topic, if that has more records in a partition than the old one
        had, and the leader epoch is the same. The claim on these names the old topic, so that they come twice: the job
        reads the new topic from its beginning. Checking the id before each claim would cost a request each time.
        """
        if self.terms is None or lane >= self.terms.lanes:
            return []
        return [
            (topic, number)
            for topic, known in self.terms.topic_ids.items()
            if topic in self.present and self.present[topic].id == known
            for number in range(self.present[topic].partitions)
            if lane_of(topic, number, self.terms.lanes) == lane
        ]


class InputWatch:
    """Looks the inputs up every second, in a thread. Errors but outages are kept in `error`, and end the thread."""

    def __init__(self, settings: Settings, options: Mapping[str, str]) -> None:
        """`options` are librdkafka's."""
        self.inputs = Inputs()
        self.error: BaseException | None = None
        self._settings, self._options = settings, options
        self._ids = TopicIds(options)
        self._terms_s = 0.0
        self._looking = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inputs", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for its end."""
        self._stopping.set()
        self._thread.join()

    def look(self, for_terms: bool = True) -> Inputs:
        """Look up the topics, and the terms if that is asked for; return the inputs. The same object if they are equal.

        Raises KafkaException, BrokerUnreachable, TopicMissing, RightMissing, CheckpointMismatch, FormatMismatch.
        """
        with self._looking, right_named("Describe", "input topics that the job reads"):
            terms = self.inputs.terms
            if for_terms:
                terms = read_terms(self._settings, self._options)
                self._terms_s = time.monotonic()
            present = {} if terms is None else self._ids.described(terms.topic_ids)
            found = Inputs(terms, present)
            if found != self.inputs:
                self.inputs = found
            return self.inputs

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.look(for_terms=time.monotonic() >= self._terms_s + _TERMS_EVERY_S)
            except BaseException as error:  # noqa: BLE001, the process raises it
                if not _is_outage(error):
                    self.error = error
                    return
                # The lanes log it.
                log.debug("cannot look up the input topics: %s", error)
            self._stopping.wait(_LOOK_EVERY_S)


def _is_outage(error: BaseException) -> bool:
    return isinstance(error, BrokerUnreachable) or (isinstance(error, KafkaException) and is_outage(error.args[0]))
