"""Rows of messages for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.messages import headers

_HEADER_LISTS = st.one_of(
    st.none(),
    st.lists(st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=3))), max_size=3).map(
        lambda pairs: headers(*pairs)
    ),
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "deliver_at_ms": st.integers(0, 9),
            "topic": st.sampled_from(["b", "a"]),
            "partition": st.integers(0, 2),
            "offset": st.integers(0, 2**40),
            "key": st.one_of(st.none(), st.binary(max_size=4)),
            "value": st.one_of(st.none(), st.binary(max_size=200)),
            "headers": _HEADER_LISTS,
        }
    ),
    max_size=30,
)
