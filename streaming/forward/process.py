"""A forwarder: a member of the consumer group between whose members Kafka divides the lanes (`sinks.group`).

The group decides who should forward a lane; fencing decides who can (`sinks.lanes`).
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

from conf.failpoints import failpoint
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.group.groups import forward_group
from sinks.group.member import GroupMember
from sinks.group.refusals import REFUSED_LIMIT_S
from sinks.topics.topics import check_topics
from streaming.forward.counts import ForwardCounts
from streaming.forward.engine import ForwardContext, LaneForwarder
from streaming.forward.inputs import InputWatch

log = logging.getLogger(__name__)

# A lane that another owner took may come back, if the group still gives it to this process.
_RETAKE_S = 1.0
# A thread that has something to hand over waits at most so long for one that computes.
_SWITCH_S = 0.0005


class ForwardProcess:
    """Forwards the lanes that the group gives to this process.

    `lanes` are those that are open, `counts` what was forwarded, `group` is its place in the group.
    """

    def __init__(self, settings: Settings, member: str, refused_limit_s: float = REFUSED_LIMIT_S) -> None:
        """`member` is the process's name in the group: of two with one name, the later one fences the other.

        `refused_limit_s` is for how long the group may refuse the process before it ends.

        Raises TopicMissing, TopicMismatch, RightMissing, BrokerUnreachable.
        """
        check_topics(settings)
        options = librdkafka_options(settings.kafka)
        self.counts = ForwardCounts()
        self._watch = InputWatch(settings, options)
        self._context = ForwardContext(settings, member, options, self._watch, self.counts)
        self.lanes: dict[int, LaneForwarder] = {}
        # When a lane that another owner took may be opened again, by the monotonic clock.
        self._retake_s: dict[int, float] = {}
        self.group = GroupMember(
            forward_group(settings), options, member, self._on_assign, self._on_revoke, refused_limit_s
        )

    def run(self, should_end: Callable[[ForwardProcess], bool], on_joined: Callable[[], None] = lambda: None) -> None:
        """Forward until `should_end`, which is asked several times a second. Call `on_joined` when the group takes it.

        Raises the errors of `GroupMember.poll`, of `LaneForwarder` and of `InputWatch`.
        """
        sys.setswitchinterval(_SWITCH_S)
        self._watch.start()
        self.group.join(on_joined)
        try:
            while not should_end(self):
                self.group.poll()
                self._open_assigned()
                self._end_taken()
                if self._watch.error is not None:
                    raise self._watch.error
        finally:
            self.group.leave()
            self._watch.stop()

    def _on_assign(self, numbers: set[int]) -> None:
        del numbers
        failpoint("lanes-assigned")

    def _on_revoke(self, gone: set[int]) -> None:
        """Stop lanes, and wait until what they have written is committed."""
        closing = [self.lanes.pop(number) for number in gone & self.lanes.keys()]
        for lane in closing:
            lane.stop()
        for lane in closing:
            lane.join()
        failpoint("lanes-revoked")

    def _open_assigned(self) -> None:
        for number in sorted(self.group.numbers - self.lanes.keys()):
            if time.monotonic() >= self._retake_s.get(number, 0.0):
                self.lanes[number] = LaneForwarder(self._context, number)
                self.lanes[number].start()

    def _end_taken(self) -> None:
        """Forget the lanes that have ended. Raises the error of one."""
        for number, lane in list(self.lanes.items()):
            if lane.ended.is_set():
                del self.lanes[number]
                if lane.error is not None:
                    raise lane.error
                self._retake_s[number] = time.monotonic() + _RETAKE_S
