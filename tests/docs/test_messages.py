"""Texts are plain English: log lines, errors, help, comments of settings, remedies; and comments and docstrings."""

from __future__ import annotations

import ast
import re
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.documents import ROOT

_PACKAGES = ("conf", "sources", "state", "sinks", "streaming")
_ALL_PACKAGES = (*_PACKAGES, "benchmarks", "tests")
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
# The same for comments and docstrings, which may name other things too.
_HABITS_IN_CODE = re.compile(
    r"(?:^|(?<=[.!?:] ))(?:Of|What|Whoever) |\b(?:anew|for certain)\b|\bis none\b|\bth(?:at|ose) of\b|\bas many as\b"
)


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


def comments() -> Iterator[tuple[str, str]]:
    """Yield each comment and each docstring of the code, with its place. Lines of comments that follow are one."""
    for path in sorted(path for package in _ALL_PACKAGES for path in (ROOT / package).rglob("*.py")):
        place, source = path.relative_to(ROOT), path.read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield f"{place}:{getattr(node, 'lineno', 1)}", " ".join(text.split())
        lines = {
            token.start: token.string.removeprefix("#").strip()
            for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__)
            if token.type == tokenize.COMMENT
        }
        for line, column in lines:
            if (line - 1, column) not in lines:
                end = next(end for end in range(line + 1, line + 1_000) if (end, column) not in lines)
                yield f"{place}:{line}", " ".join(lines[number, column] for number in range(line, end))


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


def test_comments_and_docstrings_are_plain() -> None:
    found = [(place, habit[0], text) for place, text in comments() for habit in _HABITS_IN_CODE.finditer(text)]
    assert found == []
    assert sum(1 for _ in comments()) > 7_000


@pytest.mark.parametrize(
    "text", ["What is due is staged", "the job goes on", "X is no forwarder", "batch 7: " + "and again " * 21]
)
def test_the_check_finds_odd_sentences(text: str) -> None:
    assert list(odd(text))


def test_the_check_reads_log_lines_errors_and_help() -> None:
    texts = [text for _, text in messages()]
    for each in ("%s: Kafka does not answer", "the login of [kafka] lacks the right", "Cancel messages, and wait"):
        assert any(text.startswith(each) for text in texts), each
