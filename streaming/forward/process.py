"""A forwarder: a member of a consumer group. Kafka divides the lanes between its members (`sinks.group`).

The group decides who should forward a lane; fencing decides who can (`sinks.lanes`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial

from conf.failpoints import failpoint
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.group.groups import forward_group
from sinks.group.member import GroupMember
from sinks.group.parts import Parts
from sinks.group.refusals import REFUSED_LIMIT_S
from sinks.topics.limits import check_writable
from sinks.topics.topics import check_topics
from streaming.forward.clock import check_host_clock
from streaming.forward.counts import ForwardCounts
from streaming.forward.engine import ForwardContext, LaneForwarder
from streaming.forward.inputs import InputWatch

log = logging.getLogger(__name__)

# So long after another owner took a lane, this process may take it back; and at the longest, if it cannot write.
_RETAKE_S, _LONGEST_RETAKE_S = 1.0, 60.0
# A thread with messages to stage waits at most so long for one that computes.
_SWITCH_S = 0.0005


class ForwardProcess:
    """Forwards the lanes that the group gives to this process.

    `lanes` are the open lanes, `counts` counts the forwarded messages, `group` is its place in the group.
    """

    def __init__(self, settings: Settings, member: str) -> None:
        """`member` is the process's name in the group. If two processes have one name, the later one fences the other.

        Raises TopicMissing, TopicMismatch, RightMissing, BrokerUnreachable, DeliveryFailed, ClockAhead.
        """
        check_topics(settings)
        # A forwarder that cannot write would take the lanes from the job each time that it is started.
        check_writable(settings, [settings.near_topic, settings.claims_topic])
        options = librdkafka_options(settings.kafka)
        # Before it joins the group, and fences an owner: others forward the lanes meanwhile.
        check_host_clock(settings, options, member)
        self.counts = ForwardCounts()
        self._watch = InputWatch(settings, options)
        self._context = ForwardContext(settings, member, options, self._watch, self.counts)
        self.lanes = Parts(partial(LaneForwarder, self._context), _RETAKE_S, _LONGEST_RETAKE_S)
        self.group = GroupMember(
            forward_group(settings), options, member, self._on_assign, self._on_revoke, REFUSED_LIMIT_S
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
                for lane in self.lanes.add(self.group.numbers):
                    lane.start()
                self.lanes.forget_ended()
                if self._watch.error is not None:
                    raise self._watch.error
        finally:
            self.group.leave()
            self._watch.stop()

    def _on_assign(self, numbers: set[int]) -> None:
        del numbers
        failpoint("lanes-assigned")

    def _on_revoke(self, gone: set[int]) -> None:
        # Another process may have the lanes once what they have written is committed.
        self.lanes.close(gone)
        failpoint("lanes-revoked")
