"""A received record on a terminal and as JSON, whatever its publisher has written into it."""

from __future__ import annotations

import json

import pytest

from sources.subscriber import Received
from streaming.cli.record_formats import as_json, as_rows

# Escape sequences: of 7 bits, of one character of the second control set, and delete.
CONTROLS = "\x1b[2J \x9b2J \x7f \x85"


def record(*headers: tuple[str, bytes | None], value: bytes = b"v") -> Received:
    return Received("dead", 1, 5, 0, b"k", value, list(headers), 1_798_135_200_000)


@pytest.mark.parametrize("digits", [19, 20, 400, 5_000])
def test_a_due_time_that_its_publisher_has_made_up_is_none(digits: int, capsys: pytest.CaptureFixture[str]) -> None:
    letter = record(("delayline-deliver-at", b"9" * digits), ("delayline-id", b"in/0/1"))
    as_json()(letter)
    fields = json.loads(capsys.readouterr().out)
    assert (fields["id"], fields["deliver_at_ms"], fields["lateness_ms"]) == ("in/0/1", None, None)
    as_rows()(letter)
    assert capsys.readouterr().out.splitlines()[1].split()[1:3] == ["-", "dead/1/5"]


def test_no_row_has_a_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    as_rows()(record(("delayline-id", f"{CONTROLS}/0/1".encode()), value=CONTROLS.encode()))
    heading, row = capsys.readouterr().out.removesuffix("\n").split("\n")
    assert (heading + row).isprintable()
    assert row.count("[2J") == 2


def test_no_line_of_json_has_a_control_character_and_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    text = f"{CONTROLS} \u2028 \N{SNOWMAN} \\x9b"
    as_json()(record(("delayline-id", text.encode()), (text, text.encode()), value=text.encode()))
    line = capsys.readouterr().out.removesuffix("\n")
    assert line.isprintable()
    assert "\N{SNOWMAN}" in line
    fields = json.loads(line)
    assert (fields["id"], fields["value"]) == (text, text)
    assert fields["headers"] == [["delayline-id", text], [text, text]]
