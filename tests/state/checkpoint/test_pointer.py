"""The pointer to the current checkpoint."""

from __future__ import annotations

import pytest

from conf.errors import CheckpointUnreadable
from state.checkpoint.pointer import folder_in, folder_of, newest_pointer, pointer_to


def test_the_highest_number_counts_and_other_files_do_not() -> None:
    assert newest_pointer(["2", "10", "9", ".11.tmp", ".10.crc", "12.tmp"]) == 10
    assert newest_pointer([".2.crc"]) is None


def test_a_pointer_names_the_folder_that_it_was_written_for() -> None:
    assert folder_in(pointer_to(folder_of(7)), "file") == "checkpoint-7"


@pytest.mark.parametrize("text", ["", "{", "7", "[]", "{}", '{"folder": null}', '{"folder": "a/b"}'])
def test_a_text_that_names_no_folder_is_damaged(text: str) -> None:
    with pytest.raises(CheckpointUnreadable, match=r"/checkpoints/3 is damaged.*/checkpoints/\.3\.crc"):
        folder_in(text, "/checkpoints/3")
