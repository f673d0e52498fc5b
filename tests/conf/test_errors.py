from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.errors import DelaylineError, KafkaError, SettingError, SetupError, StorageError, UsageError, quoted
from conf.rejected import MOST_TEXT_BYTES, Rejected


def descendants(root: type[DelaylineError]) -> Iterator[type[DelaylineError]]:
    for child in root.__subclasses__():
        yield child
        yield from descendants(child)


def test_each_error_has_a_unique_code() -> None:
    # A base class that is never raised has no code.
    bases = {SetupError, KafkaError, StorageError}
    errors: list[type[DelaylineError]] = [DelaylineError, *descendants(DelaylineError)]
    assert {error for error in errors if "code" not in vars(error)} == bases
    codes = [error.code for error in errors if error not in bases]
    assert len(set(codes)) == len(codes) > 20


def test_codes_are_words_that_can_be_searched_for() -> None:
    assert all(error.code.replace("-", "").isalpha() and error.code.islower() for error in descendants(DelaylineError))


def test_an_error_begins_with_its_code() -> None:
    assert str(SettingError("bucket.shards = 0")) == "bad-setting: bucket.shards = 0"


def test_errors_that_the_caller_can_fix_have_exit_code_2_and_all_others_1() -> None:
    fixable = {error for error in descendants(DelaylineError) if error.exit_code == 2}
    assert fixable == {SettingError, UsageError}
    assert {error.exit_code for error in descendants(DelaylineError)} == {1, 2}


def test_every_rejection_has_a_docstring() -> None:
    assert all(error.__doc__ for error in descendants(Rejected))


@given(st.sampled_from(list(Rejected.__subclasses__())), st.text(max_size=50), st.integers(0, 3_000))
def test_the_text_of_a_dead_letter_is_bounded_whatever_it_quotes(error: type[Rejected], text: str, times: int) -> None:
    whole = f"{error.code}: {text * times}".encode(errors="replace")
    encoded = str(error(text * times)).encode()
    assert len(encoded) <= MOST_TEXT_BYTES
    assert encoded == whole if len(whole) <= MOST_TEXT_BYTES else whole.startswith(encoded[:-10])


@pytest.mark.parametrize("value", ["x" * 41, b"\x01" * 600_000])
def test_a_long_value_is_quoted_by_its_beginning(value: str | bytes) -> None:
    assert quoted(value) == f"{value[:40]!r}..."
    assert quoted(value[:40]) == f"{value[:40]!r}"
