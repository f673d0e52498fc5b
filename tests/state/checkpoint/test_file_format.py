"""The format number in a checkpoint's files."""

from __future__ import annotations

import json

import pytest

from conf.errors import CheckpointUnreadable, CheckpointVersion
from state.checkpoint.file_format import FORMAT, with_format, without_format


def test_a_text_with_a_format_number_is_read_back_without_it() -> None:
    text = '{"a": 1, "b": {"c": [2]}}'
    assert json.loads(without_format(with_format(text), "file")) == json.loads(text)


@pytest.mark.parametrize("number", [FORMAT + 1, 0, "1", None])
def test_another_format_is_refused_with_the_file_and_both_numbers(number: object) -> None:
    with pytest.raises(CheckpointVersion, match=rf"/c/file has format {number!r}.* reads format {FORMAT}") as raised:
        without_format(json.dumps({"format": number}), "/c/file")
    assert "delayline rebuild" in str(raised.value)


@pytest.mark.parametrize("text", ["", "{}", "\0\0\0", '{"format": 1', "[1]", "7"])
def test_a_text_that_is_not_an_object_is_damaged(text: str) -> None:
    with pytest.raises(CheckpointUnreadable, match=r"/c/file is damaged.*delayline rebuild"):
        without_format(text, "/c/file")
