from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sources.intake.due_times import parse_values
from sources.intake.header_columns import Rejections, parse_distinct
from sources.intake.schedule import parse_delay_level, parse_deliver_after, parse_deliver_at

_NUMBERS = st.from_regex(rb"[ \"]?[0-9]{1,16}( ?ms|s|\.5s)?[ \n\"]?", fullmatch=True)
_NEAR_EPOCH_MS = st.from_regex(rb"[ \"]?[0-9]{12,14}[ \n\"]?", fullmatch=True)
_DATES = st.datetimes().map(lambda at: at.isoformat(timespec="milliseconds").encode() + b"Z")
# Days that no month has, too.
_NEAR_DATES = st.from_regex(
    rb"[12][09][2679][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{1,4})?(Z|z|\+01:00|Z\n)?",
    fullmatch=True,
)
_WORDS = b"0 00 007 0ms soon ms 5m 1h30m PT10S 2026-12-24T18:00:00Z 2024-02-29T00:00:00Z 2026-02-29T00:00:00Z"
_OTHERS = st.sampled_from([*_WORDS.split(b" "), None, b"", b"-1798135200000", b"\xff" * 13])
_VALUES = st.lists(_NUMBERS | _NEAR_EPOCH_MS | _DATES | _NEAR_DATES | _OTHERS, max_size=20)


@pytest.mark.parametrize("parse", [parse_deliver_at, parse_deliver_after, parse_delay_level])
@given(_VALUES)
@example([b"2026-12-31T23:59:59.9Z", b"1970-01-01T00:00:00Z", b"2999-11-30T10:20:30.05Z", b"999999999999999ms"])
def test_values_are_parsed_as_one_by_one(parse: Callable[[bytes | None], int], values: list[bytes | None]) -> None:
    rows, column = np.arange(len(values)) + 5, pa.array(values, pa.binary())
    one_by_one, together = Rejections(), Rejections()
    expected = parse_distinct(rows, column, parse, one_by_one)
    assert parse_values(rows, column, parse, together).tolist() == expected.tolist()
    assert {row: str(error) for row, error in together.errors.items()} == {
        row: str(error) for row, error in one_by_one.errors.items()
    }
