"""Pages are short, found from the index, and written in sentences that are read once."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.docs.documents import ROOT, Document

_MOST_BYTES = 8_192
_MOST_WORDS = 30
# Habits that make a sentence hard to read: it begins with its object, or has a pronoun in place of a noun.
_HABITS = re.compile(r"^(?:Of|What|Whoever) |\b(?:th(?:at|ose) of|as many as|beside|anew|for certain|whose)\b")
_PAGES = [Document(path) for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "reference"]
_INDEX = ROOT / "docs/README.md"
_OTHERS = [Document(ROOT / path) for path in ("README.md", "CONTRIBUTING.md", "examples/README.md", "tests/README.md")]


def name(page: Document) -> str:
    return page.name


@pytest.mark.parametrize("page", _PAGES, ids=name)
def test_a_page_is_short(page: Document) -> None:
    assert page.path.stat().st_size <= _MOST_BYTES


def test_every_page_is_found_from_the_index() -> None:
    found, todo = set(), [_INDEX]
    while todo:
        path = todo.pop()
        if path not in found and path.suffix == ".md":
            found.add(path)
            targets = [target.partition("#")[0] for _, target in Document(path).links()]
            todo += [(path.parent / target).resolve() for target in targets if target]
    assert [page.name for page in _PAGES if page.path not in found] == []


@pytest.mark.parametrize("page", [*_PAGES, *_OTHERS], ids=name)
def test_sentences_are_short_and_plain(page: Document) -> None:
    assert list(hard_sentences(page.prose())) == []


def hard_sentences(lines: list[str]) -> Iterator[str]:
    """Yield sentences that are too long or have a habit. `lines` are paragraphs, items of lists, and cells."""
    for line in lines:
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]+`", "X", line)).replace("*", "")
        for sentence in re.split(r"(?<=[.!?:;]) +", text):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) > _MOST_WORDS:
                yield f"{len(words)} words: {sentence}"
            if habit := _HABITS.search(sentence):
                yield f"{habit[0]!r}: {sentence}"


@pytest.mark.parametrize(
    "line",
    ["What is due goes out.", "One is that of the job.", "It runs `once`, " + "and again " * 15, "They are made anew."],
)
def test_the_check_finds_hard_sentences(line: str) -> None:
    assert list(hard_sentences([line]))
