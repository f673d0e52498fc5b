"""No application can fence the producers of another one, by the ids that it has or by the rights of its login."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import ResourceType
from hypothesis import given
from hypothesis import strategies as st

from conf.load import load_settings
from sinks.internal_topics.transactional_ids import transactional_id
from sinks.release.ring import ring_id
from tests.documented_rights import documented_rights

_NUMBERS = range(4)
_APPLICATIONS = st.text("ab012.-_", min_size=1, max_size=6)
# Endings that make a name look like the ids of another application.
_ENDINGS = st.sampled_from(["", "-release", "-release-0", "-release-0-1", "-0", "-lease", "-origin", "-resend", "-eu"])


def _ids(application_id: str) -> set[str]:
    """Return the ids of some producers of an application, of each kind."""
    stage = {transactional_id(application_id, shard) for shard in _NUMBERS}
    rings = {ring_id(application_id, shard, number) for shard in _NUMBERS for number in _NUMBERS}
    lanes = {transactional_id(application_id, "forward", lane) for lane in _NUMBERS}
    names = ("lease", "origin", "resend", "terms")
    return stage | rings | lanes | {transactional_id(application_id, name) for name in names}


@given(_APPLICATIONS, _APPLICATIONS, _ENDINGS, _ENDINGS)
def test_no_two_applications_share_a_transactional_id(one: str, other: str, ending: str, other_ending: str) -> None:
    if (one := one + ending) != (other := other + other_ending):
        assert not _ids(one) & _ids(other)
        assert not _ids(one) & _ids(one + other_ending + "-eu")


@pytest.mark.parametrize("other", ["orders-eu", "orders-release", "orders2", "orders.release"])
def test_the_documented_rights_of_an_application_hold_no_id_of_another(other: str) -> None:
    rights = documented_rights(load_settings(None, ["application_id=orders"], environ={}))
    prefixes = {right.name for right in rights if right.kind is ResourceType.TRANSACTIONAL_ID}
    assert prefixes
    for prefix in prefixes:
        assert any(each.startswith(prefix) for each in _ids("orders"))
        assert not [each for each in _ids(other) if each.startswith(prefix)]
