"""Instants that a person names."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from streaming.cli.app import app
from streaming.status.instants import named_instant_ms

NOW_MS = 1_798_135_200_000
SECONDS, MICROSECONDS, NANOSECONDS = "1798135200", "1798135200000000", "1798135200000000000"


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1798135200001", NOW_MS + 1),
        (" 1798135200001 ", NOW_MS + 1),
        ("2026-12-24T19:00:00+01:00", NOW_MS),
        ("2h", NOW_MS + 7_200_000),
        ("1h30m", NOW_MS + 5_400_000),
        ("PT10S", NOW_MS + 10_000),
        ("0s", NOW_MS),
        ("36525d", NOW_MS + 36_525 * 86_400_000),
    ],
)
def test_an_instant_is_epoch_ms_or_iso_8601_or_so_long_from_now(text: str, at_ms: int) -> None:
    assert named_instant_ms(text, NOW_MS) == at_ms


def test_a_duration_lies_in_the_past_where_that_is_meant() -> None:
    assert named_instant_ms("2h", NOW_MS, ago=True) == NOW_MS - 7_200_000
    assert named_instant_ms(str(NOW_MS + 1), NOW_MS, ago=True) == NOW_MS + 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SECONDS, "'1798135200' is seconds by its size"),
        (MICROSECONDS, "is microseconds by its size"),
        (NANOSECONDS, "is nanoseconds by its size"),
        ("3600", "is before September 2001 as epoch ms. For a duration, write a unit, such as 3600ms"),
        ("20261224", "is before September 2001"),
        ("999999999999", "is before September 2001"),
        ("0", "is before September 2001"),
        ("١٢", "is not an instant"),
        (f"{SECONDS}.5", "write epoch ms"),
        ("-2h", "write epoch ms"),
        ("2026-12-24T18:00:00", "write epoch ms"),
        ("yesterday", "write epoch ms"),
        ("", "write epoch ms"),
        ("\udcff", "write epoch ms"),
        ("36525d1ms", "is too long: the longest duration here is 36525d"),
        ("999999999999999999w", "is too long"),
        ("P999999999W", "is too long"),
    ],
)
def test_a_number_without_a_unit_is_no_duration_and_no_duration_is_endless(text: str, why: str) -> None:
    for ago in (False, True):
        with pytest.raises(ValueError, match=why) as refused:
            named_instant_ms(text, NOW_MS, ago)
        assert len(str(refused.value)) < 300


@given(st.text(max_size=30) | st.from_regex(r"\d{1,20}(ms|s|m|h|d|w)?", fullmatch=True))
def test_any_text_gives_an_instant_in_64_bits_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        assert abs(named_instant_ms(text, NOW_MS)) < 2**61


@pytest.mark.parametrize("text", [SECONDS, MICROSECONDS, "3600", "999999999999999999w"])
@pytest.mark.parametrize(
    ("command", "option"),
    [("resend", "--since"), ("resend", "--until"), ("peek", "--due-from"), ("peek", "--due-until")],
)
def test_the_commands_refuse_such_an_instant_before_they_do_anything(command: str, option: str, text: str) -> None:
    arguments = [command, option, text, "--set", "kafka.bootstrap_servers=127.0.0.1:1"]
    refused = CliRunner().invoke(app, arguments, env={"DELAYLINE_CONFIG": None})
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"error: bad-usage: {option} '{text}' is ")
