"""Time zones, always from the package `tzdata`: the zones of one host may differ from another host's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo

from conf.errors import quoted

_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)
# No zone changes its clock twice in that time.
_STEP_S = 86_400


@cache
def zone_names() -> frozenset[str]:
    """Return the names of all zones."""
    return frozenset(files("tzdata").joinpath("zones").read_text("utf-8").split())


@lru_cache(maxsize=1_024)
def zone_named(name: str) -> ZoneInfo:
    """Return the zone with an IANA `name`, such as `Europe/Berlin`. Raises ValueError if it does not exist."""
    if name not in zone_names():
        raise ValueError(f"{quoted(name)} is not a time zone; write its IANA name, such as Europe/Berlin")
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def wall_time(at_ms: int, zone: ZoneInfo) -> datetime:
    """Return the time of a wall clock at `at_ms` (epoch ms), to the second, without a zone.

    Raises OverflowError beyond the year 9999.
    """
    return _aware(at_ms // 1_000, zone).replace(tzinfo=None, fold=0)


def instant_of(wall: datetime, zone: ZoneInfo) -> int:
    """Return the instant (epoch ms) at which a wall clock shows `wall`.

    If the clock shows it twice, the first instant counts. If it never does, the instant at which the clock is set
    forward past it counts. Raises OverflowError at the bounds of the calendar.
    """
    # The second number uses the offset after a change of the clock. Both are the same without a change.
    first_s, second_s = (_seconds(wall, zone, fold) for fold in (0, 1))
    if second_s >= first_s:
        return first_s * 1_000
    # Never shown: the change is after `second_s`, and not later than `first_s`.
    return _change_s(second_s, first_s, zone) * 1_000


def offset_at(at_ms: int, zone: ZoneInfo) -> int:
    """Return how far a wall clock is ahead of UTC at `at_ms` (epoch ms), in ms."""
    return _offset_s(at_ms // 1_000, zone) * 1_000


def instant_with(wall: datetime, offset_ms: int) -> int:
    """Return the instant (epoch ms) at which a clock shows `wall` that is `offset_ms` ahead of UTC."""
    return (wall - _EPOCH) // _SECOND * 1_000 - offset_ms


def next_change(after_ms: int, until_ms: int, zone: ZoneInfo) -> int | None:
    """Return the first instant after `after_ms` and up to `until_ms` at which a clock is changed, or None."""
    at_s, until_s = after_ms // 1_000, until_ms // 1_000
    before = _offset_s(at_s, zone)
    while at_s < until_s:
        next_s = min(at_s + _STEP_S, until_s)
        if _offset_s(next_s, zone) != before:
            return _change_s(at_s, next_s, zone) * 1_000
        at_s = next_s
    return None


def _change_s(before_s: int, after_s: int, zone: ZoneInfo) -> int:
    """Return when a clock is changed, which happens once, after `before_s` and not later than `after_s`, epoch s."""
    before = _offset_s(before_s, zone)
    while after_s - before_s > 1:
        middle_s = (after_s + before_s) // 2
        if _offset_s(middle_s, zone) == before:
            before_s = middle_s
        else:
            after_s = middle_s
    return after_s


def _offset_s(at_s: int, zone: ZoneInfo) -> int:
    offset = _aware(at_s, zone).utcoffset()
    assert offset is not None
    return offset // _SECOND


def _seconds(wall: datetime, zone: ZoneInfo, fold: int) -> int:
    offset = wall.replace(tzinfo=zone, fold=fold).utcoffset()
    assert offset is not None
    return (wall - offset - _EPOCH) // _SECOND


def _aware(at_s: int, zone: ZoneInfo) -> datetime:
    return (_EPOCH + timedelta(seconds=at_s)).replace(tzinfo=UTC).astimezone(zone)
