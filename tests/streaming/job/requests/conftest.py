"""Stand-ins for brokers, for tests of the decision about cancels and names."""

from __future__ import annotations

import pytest

from state.cancel import MessageId
from state.checkpoint.progress import Progress
from state.message_ids import each_of as each_id
from state.message_ids import ids_of
from streaming.job.requests.recalled import RecalledMessages
from tests.streaming.job.requests.desk_bench import BATCH, TOPIC, span


@pytest.fixture
def known_from(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], int]:
    """The offsets below which messages are old."""
    own = {(TOPIC, 0): 0}
    monkeypatch.setattr(RecalledMessages, "known_from", own)
    return own


@pytest.fixture
def markers(monkeypatch: pytest.MonkeyPatch) -> list[Progress | None]:
    """The last marker of each of two shards. The second one has staged nothing for long."""
    own: list[Progress | None] = [Progress(span(previous_ms=700)), Progress(span(BATCH - 1, 600))]
    monkeypatch.setattr("streaming.job.requests.desk.read_markers", lambda _: own)
    return own


@pytest.fixture
def recalled(monkeypatch: pytest.MonkeyPatch) -> list[MessageId]:
    """The messages that release processes have recalled. Their reader has a test of its own, with a broker."""
    ids: list[MessageId] = []
    monkeypatch.setattr(RecalledMessages, "read", lambda *_: None)
    monkeypatch.setattr(RecalledMessages, "among", lambda _, wanted: ids_of(each_id(wanted) & set(ids)))
    monkeypatch.setattr(RecalledMessages, "forget", lambda *_: None)
    return ids
