"""How the job reports records with timestamps that Spark cannot read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from conf.errors import BrokerUnreachable, RecordUnreadable, RightMissing
from conf.settings import Settings
from sources.intake.stamp_check import MOST_FOUND, Unreadable
from streaming.job.inputs import unreadable_stamps
from streaming.job.inputs.unreadable_stamps import check_stamps

CHECKPOINT: Any = SimpleNamespace(
    last_planned=lambda: 3, read_offsets=dict, planned=lambda _: SimpleNamespace(offsets={"in": {"0": 9}})
)


@pytest.mark.parametrize(
    ("count", "names", "said"),
    [(1, 1, None), (10, 10, None), (11, 10, " (the first 10 of 11 found):"),
     (MOST_FOUND, 10, " (the first 10 of 1000 found):")],
)  # fmt: skip
def test_the_first_unreadable_records_are_named_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch, count: int, names: int, said: str | None
) -> None:
    records = [Unreadable("in", 0, offset, 10**18) for offset in range(count)]
    monkeypatch.setattr(unreadable_stamps, "unreadable_records", lambda *_: records)
    with pytest.raises(RecordUnreadable) as raised:
        check_stamps(Settings(), CHECKPOINT)
    text = str(raised.value)
    assert text.startswith(f"record-unreadable: {'; '.join(map(str, records[:names]))}")
    assert text.count("has timestamp") == names
    assert ("found" in text) == (said is not None)
    assert said is None or said in text


@pytest.mark.parametrize("problem", [BrokerUnreachable("in cannot be read to the end"), RightMissing("no right Read")])
def test_an_input_that_cannot_be_searched_hides_no_other_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, problem: Exception
) -> None:
    def failing(*_: Any) -> list[Unreadable]:
        raise problem

    monkeypatch.setattr(unreadable_stamps, "unreadable_records", failing)
    check_stamps(Settings(), CHECKPOINT)
    assert str(problem) in caplog.text
