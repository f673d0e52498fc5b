"""Records of internal topics, of which a start may read millions."""

from __future__ import annotations

import pytest

from state.checkpoint import stored_json
from state.claims import Claim


def test_a_record_of_the_present_format_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Claim(1).next("f", {("in", 0): 5}, {("in", 0): [3]}, {"in": "A"})
    value = claim.to_bytes()
    monkeypatch.delattr(stored_json, "json")
    assert Claim.from_bytes(value) == claim
