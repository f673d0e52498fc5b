from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sources.intake.due_times import parse_instants
from sources.intake.header_columns import Rejections, parse_distinct
from sources.intake.schedule import parse_deliver_at

_NEAR_THE_USUAL = st.from_regex(rb"[ \"]?[0-9]{12,14}[ \n\"]?", fullmatch=True)
_OTHERS = st.sampled_from([None, b"", b"0", b"2026-12-24T18:00:00Z", b"soon", b"-1798135200000", b"\xff" * 13])


@given(st.lists(_NEAR_THE_USUAL | _OTHERS, max_size=20))
def test_instants_are_parsed_as_one_by_one(values: list[bytes | None]) -> None:
    rows, column = np.arange(len(values)) + 5, pa.array(values, pa.binary())
    one_by_one, together = Rejections(), Rejections()
    expected = parse_distinct(rows, column, parse_deliver_at, one_by_one)
    assert parse_instants(rows, column, together).tolist() == expected.tolist()
    assert {row: str(error) for row, error in together.errors.items()} == {
        row: str(error) for row, error in one_by_one.errors.items()
    }
