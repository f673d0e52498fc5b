"""What becomes of the replacements of a batch."""

from __future__ import annotations

import pyarrow as pa
import pytest

from state.buckets.cancelled import CANCELLED_SCHEMA
from state.cancel import ALWAYS, ASK_SCHEMA, WAITING, MessageId, accepted_replacements
from streaming.job.requests import decision
from streaming.job.requests.decision import Replacements


class CountedSet(set[MessageId]):
    """A set that counts how many unions it is part of."""

    unions = 0

    def __or__(self, other: object) -> set[MessageId]:  # type: ignore[override]
        type(self).unions += 1
        return set(self) | other  # type: ignore[operator]


def replacements(*conditions: str) -> pa.Table:
    rows = [("in", 0, at, "in", 0, 100 + at, condition, 5, None, 5, None) for at, condition in enumerate(conditions)]
    return pa.table([list(column) for column in zip(*rows, strict=True)], names=ASK_SCHEMA.names).cast(ASK_SCHEMA)


def test_what_is_neither_accepted_nor_cancelled_is_refused_by_one_look_at_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "accepted_replacements", lambda *args: CountedSet(accepted_replacements(*args)))
    cancelled = pa.Table.from_pylist(
        [dict(zip(CANCELLED_SCHEMA.names, ("in", 0, offset, 5, 5), strict=True)) for offset in (1, 103)],
        schema=CANCELLED_SCHEMA,
    )
    decided = Replacements.of(replacements(ALWAYS, WAITING, WAITING, WAITING), (), cancelled, {})
    assert decided.accepted == {("in", 0, 100), ("in", 0, 101)}
    assert decided.replaced == {("in", 0, 1): ("in", 0, 101)}
    assert decided.refused.column("offset").to_pylist() == [102], "103 is cancelled otherwise"
    # As large as the batch: one for each ask would take the square of that.
    assert CountedSet.unions == 1
