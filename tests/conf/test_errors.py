from __future__ import annotations

from collections.abc import Iterator

from conf.errors import DelaylineError, KafkaError, Rejected, SettingError, SetupError, StorageError, UsageError


def descendants(root: type[DelaylineError]) -> Iterator[type[DelaylineError]]:
    for child in root.__subclasses__():
        yield child
        yield from descendants(child)


def test_each_error_has_a_code_of_its_own() -> None:
    # A base that is never raised has none.
    bases = {SetupError, KafkaError, StorageError}
    errors: list[type[DelaylineError]] = [DelaylineError, *descendants(DelaylineError)]
    assert {error for error in errors if "code" not in vars(error)} == bases
    codes = [error.code for error in errors if error not in bases]
    assert len(set(codes)) == len(codes) > 20


def test_codes_are_words_that_can_be_searched_for() -> None:
    assert all(error.code.replace("-", "").isalpha() and error.code.islower() for error in descendants(DelaylineError))


def test_an_error_begins_with_its_code() -> None:
    assert str(SettingError("bucket.shards = 0")) == "bad-setting: bucket.shards = 0"


def test_what_the_caller_can_mend_ends_with_exit_code_2_and_the_rest_with_1() -> None:
    mendable = {error for error in descendants(DelaylineError) if error.exit_code == 2}
    assert mendable == {SettingError, UsageError}
    assert {error.exit_code for error in descendants(DelaylineError)} == {1, 2}


def test_every_error_says_in_its_docstring_when_it_is_raised() -> None:
    assert all(error.__doc__ for error in descendants(Rejected))
