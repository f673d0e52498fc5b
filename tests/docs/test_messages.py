"""What users read at run time is plain English: log lines, errors, help, comments of settings, and remedies."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.documents import ROOT

_PACKAGES = ("conf", "sources", "state", "sinks", "streaming")
_MOST_WORDS = 40
# A pattern, and what to write instead.
_HABITS = {
    r"^(?:Of|What|Whoever) ": "the subject first",
    r"\bwhat (?:is|was|are|were|it|they|nobody|waits|falls|lies|forwarders)\b": "the thing's name: staged messages",
    r"\bth(?:at|ose) of\b|\bas many as\b": "the noun again",
    r"\b(?:beside|anew|for certain|whose)\b": "next to, again, certainly, with",
    r"(?<!here )\b(?:is|are|was|were) no (?!longer)|\bis none\b": "is not a …, or no … exists",
    r"\bhand(?:s|ed|ing)?[ -]over": "stage (messages), switch (checkpoints)",
    r"\bgo(?:es)? on\b": "continue",
    r"\btake[sn]? back\b|\btook back\b": "recall",
    r"\bpass(?:ed|es)? over\b": "ignore",
    r"\bgiven to\b": "assign",
}


@cache
def messages() -> list[tuple[str, str]]:
    """Return each text of the code that people read, with its place: strings of three words or more, and help."""
    found = []
    for package in _PACKAGES:
        # The names of Kafka's options are long lists of words, and no sentences.
        for path in sorted({*(ROOT / package).rglob("*.py")} - {ROOT / "conf/kafka/option_names.py"}):
            found += [(f"{path.relative_to(ROOT)}:{line}", text) for line, text in _strings(path)]
    return found


def _strings(path: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and path.parent.name == "cli" and not node.name.startswith("_"):
            yield node.lineno, " ".join((ast.get_docstring(node) or "").split())
    # A docstring is an expression of its own. A part of an f-string is read with the whole.
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            silent |= {id(each) for each in ast.walk(node)} - {id(node)}
    for node in ast.walk(tree):
        if id(node) not in silent and (text := _text(node)).count(" ") > 1:
            yield node.lineno, text  # type: ignore[attr-defined]


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else "X" for each in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def settings_comments() -> list[tuple[str, str]]:
    """Return each comment of the settings file, with its place."""
    found, text = [], ""
    for number, line in enumerate((ROOT / "conf/delayline.toml").read_text().splitlines(), 1):
        if line.startswith("# "):
            text += line[1:]
        elif text:
            found.append((f"conf/delayline.toml:{number}", text.strip()))
            text = ""
    return found


def remedies() -> list[tuple[str, str]]:
    """Return the remedy of each error code."""
    tables = tomllib.loads((ROOT / "docs/reference/remedies.toml").read_text())
    return [(f"remedies.toml: {code}", text) for table in tables.values() for code, text in table.items()]


def odd(text: str) -> Iterator[str]:
    """Yield the sentences of `text` that are too long or have a habit, with what to write instead."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]+`", "X", text))
    for sentence in re.split(r"(?<=[.!?:;])\s+", " ".join(text.split())):
        if len(re.findall(r"\S*\w\S*", sentence)) > _MOST_WORDS:
            yield f"more than {_MOST_WORDS} words: {sentence}"
        for habit, instead in _HABITS.items():
            if found := re.search(habit, sentence):
                yield f"{found[0]!r}, write {instead}: {sentence}"


@pytest.mark.parametrize("texts", [messages, settings_comments, remedies], ids=lambda texts: texts.__name__)
def test_sentences_that_users_read_are_plain(texts: object) -> None:
    assert callable(texts)
    assert [f"{place}: {wrong}" for place, text in texts() for wrong in odd(text)] == []


@pytest.mark.parametrize(
    "text", ["What is due is staged", "the job goes on", "X is no forwarder", "batch 7: " + "and again " * 21]
)
def test_the_check_finds_odd_sentences(text: str) -> None:
    assert list(odd(text))


def test_the_check_reads_log_lines_errors_and_help() -> None:
    texts = [text for _, text in messages()]
    for each in ("%s: Kafka does not answer", "the login of [kafka] lacks the right", "Cancel messages, and wait"):
        assert any(text.startswith(each) for text in texts), each
