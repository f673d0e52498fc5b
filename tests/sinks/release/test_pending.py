"""The core of the release stage against a sorted list: random chunks in two logs, arrivals, crashes and memory."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sinks.internal_topics.position import Log, Place
from sinks.release.room import Limits
from state.order import OrderKey, in_order, keys_of
from tests.messages import messages
from tests.sinks.release.accounts import check_accounts
from tests.sinks.release.pending_model import Logs, Release
from tests.thorough import examples

# The due times and output topics of a chunk's messages, its log, and how many offsets are between it and the one before
# there.
_PLACES = st.tuples(st.integers(0, 2_000), st.sampled_from(["a", "b", "c"]))
_CHUNK = st.tuples(st.lists(_PLACES, min_size=1, max_size=12), st.sampled_from(Log), st.integers(1, 3))
_CHUNKS = st.lists(_CHUNK, min_size=1, max_size=12)
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "plan", "plan", "plan", "end", "commit", "crash", "shrink", "set back"]),
        st.integers(1, 4),
        st.integers(0, 700),
    ),
    max_size=60,
)
_LIMITS = st.builds(
    Limits,
    st.integers(1, 20),
    st.sampled_from([1, 3_000, 1_000_000]),
    st.sampled_from([1, 20, 500]),
    st.dictionaries(st.sampled_from(["a", "b", None]), st.integers(1, 8)),
)


@settings(max_examples=examples(300), deadline=None)
@given(chunks=_CHUNKS, steps=_STEPS, limits=_LIMITS)
# The next incoming chunk stays, however little memory there is.
@example(chunks=[([(0, "a")], Log.READY, 1)], steps=[("arrive", 1, 0), ("shrink", 1, 0)], limits=Limits(1, 1, 1, {}))
def test_each_message_is_released_once_and_in_order_unless_it_arrived_behind(
    chunks: list[tuple[list[tuple[int, str]], Log, int]], steps: list[tuple[str, int, int]], limits: Limits
) -> None:
    tables, offsets, row = [], dict.fromkeys(Log, -1), 0
    for places, log, gap in chunks:
        offsets[log] += gap
        rows = [
            {"deliver_at_ms": due, "offset": row + at, "output_topic": topic} for at, (due, topic) in enumerate(places)
        ]
        row += len(places)
        tables.append((Place(log, offsets[log]), in_order(messages(rows))))
    everything = sorted(key for _, table in tables for batch in table.to_batches() for key in keys_of(batch))
    release = Release(Logs(tables), limits)
    now_ms = 0
    for step, number, ms in steps:
        if step == "arrive":
            release.arrive(number)
        elif step == "plan":
            now_ms += ms
            release.plan(now_ms, number * 25)
        elif step == "end":
            release.come_to_end()
        elif step == "commit":
            release.commit()
        elif step == "crash":
            release.open(first=[*Log][number % 2])
        elif step == "set back":
            now_ms -= 2 * ms
            release.open(set_back=True)
        else:
            release.max_bytes = release.pending.merge.max_bytes = ms * 100
            release.pending.merge.shrink()
            assert release.memory_is_bounded()
        check_accounts(release.pending)
    release.arrive(len(tables))
    while release.plan(5_000, 0):
        pass
    ends = release.come_to_end()
    while release.planned:
        release.commit()
    assert sorted(release.seen) == everything
    for log, end in ends.items():
        own = release.committed.of(log)
        assert own.lowest == own.taken_in == end > offsets[log]
    assert release.pending.position.released == len(everything)
    assert release.pending.position.forwarded == sum(len(places) for places, log, _ in chunks if log is Log.NEAR)
    highest = OrderKey(-1, "", 0, 0)
    for number, key in enumerate(release.seen):
        if number in release.set_back_at:
            highest = OrderKey(-1, "", 0, 0)
        if key < highest:
            assert key < release.planned_below.get(key, OrderKey(-1, "", 0, 0)), (
                "out of order, though it was there in time"
            )
        highest = max(highest, key)
