"""A forwarder on a host with a clock that is far ahead."""

from __future__ import annotations

import time

import pytest

from conf.errors import ClockAhead
from conf.kafka.options import librdkafka_options
from sinks.lanes.terms import read_terms
from streaming.forward import clock, engine
from streaming.forward.process import ForwardProcess
from tests.streaming.forward.bench import LANES, ForwardBench


def test_a_forwarder_with_a_clock_far_ahead_joins_no_group_and_fences_no_lane(
    bench: ForwardBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.open_lanes()
    terms = bench.terms()
    # The owners of the lanes, as of healthy forwarders.
    writers = [bench.writer(lane) for lane in range(LANES)]
    for module in (clock, engine):
        monkeypatch.setattr(module, "now_ms", lambda: time.time_ns() // 1_000_000 + 3_600_000)
    given_up_s, joined = time.monotonic() + 30, list[bool]()
    with pytest.raises(ClockAhead, match=r"this host's clock shows .* Forwarders claim no messages until then"):
        ForwardProcess(bench.settings, "north").run(
            lambda _: time.monotonic() > given_up_s, lambda: joined.append(True)
        )
    assert joined == []
    for writer in writers:
        assert writer.claim is not None
        writer.write(writer.claim.next("south", {}, {}, {}))
    # The comparison leaves nothing that readers of the terms see.
    assert read_terms(bench.settings, librdkafka_options(bench.settings.kafka)) == terms
