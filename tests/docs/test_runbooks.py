"""The pages for operators: each error that ends the job has a runbook of one screen, and quotes what the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from conf.errors import DelaylineError
from conf.rejected import Rejected
from tests.docs.documents import ROOT, Document

OPERATE = ROOT / "docs/operate"
PAGES = sorted(OPERATE.rglob("*.md"))
RUNBOOKS = [path for path in PAGES if path.parent.name == "runbooks" and path.name != "README.md"]
_SCREEN_LINES = 60
# These refuse a call or a start on this machine, or are not errors of a user. All others can end a running job.
_NO_RUNBOOK = {
    "bad-setting", "bad-usage", "broker-failed", "extra-missing", "injected-failure", "jars-missing", "java-missing",
    "position-invalid", "publish-failed", "service-stopping", "spark-unsupported",
}  # fmt: skip
_CODE = re.compile(r"[a-z]+(?:-[a-z]+)+")
# A row of the index: codes, and their page.
_ROW = re.compile(r"^\| ((?:`[a-z-]+`(?:, )?)+) \| \[[\w-]+\]\(([\w-]+\.md)\) \|$", re.MULTILINE)
# Two words or more in backticks: a log line, or a sentence of an error. Commands, settings and code are not.
_WORDS = re.compile(r"\w \w|… \w|\w …")
_NOT_SAID = re.compile(
    r"^(?:delayline|kafka-\S+|spark-submit|journalctl|systemctl|kubectl|ps|p?kill|VACUUM) |[=<$(]|^--"
)
_SAID_BY_OTHERS = {"worker exited unexpectedly"}


def codes(root: type[DelaylineError] = DelaylineError) -> set[str]:
    found: set[str] = set()
    for error in root.__subclasses__():
        if error is not Rejected:
            found |= codes(error) | ({error.code} if "code" in vars(error) else set())
    return found


def title(page: Path) -> list[str]:
    return page.read_text().partition("\n")[0].removeprefix("# ").split(", ")


def test_each_error_that_ends_the_job_has_one_runbook_and_the_index_names_it() -> None:
    pages = [(name, page.name) for page in RUNBOOKS for name in title(page) if _CODE.fullmatch(name)]
    assert sorted(code for code, _ in pages) == sorted(codes() - _NO_RUNBOOK)
    index = (OPERATE / "runbooks/README.md").read_text()
    listed = [(code, page) for row, page in _ROW.findall(index) for code in re.findall(r"`([a-z-]+)`", row)]
    assert sorted(listed) == sorted(pages)


@pytest.mark.parametrize("folder", [OPERATE, OPERATE / "runbooks"], ids=lambda folder: folder.name)
def test_the_index_of_a_folder_links_each_of_its_pages(folder: Path) -> None:
    pages = {path.name for path in folder.glob("*.md")} - {"README.md"}
    assert pages <= {target for _, target in Document(folder / "README.md").links()}


@pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)
def test_a_runbook_is_one_screen_with_a_symptom_a_command_that_confirms_it_and_a_fix(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^#+ .*", text, re.MULTILINE)[1:] == ["## Symptom", "## Confirm", "## Fix"]
    assert text.count("\n") <= _SCREEN_LINES
    confirm = text.partition("## Confirm\n")[2].partition("## Fix")[0]
    assert re.search(r"^    \S", confirm, re.MULTILINE)


def said(page: Path) -> Iterator[str]:
    """Yield the parts of each log line or sentence that a page quotes."""
    for line in page.read_text().splitlines():
        for quote in [] if line.startswith("    ") else re.findall(r"`([^`]+)`", line):
            if _WORDS.search(quote) and quote not in _SAID_BY_OTHERS and not _NOT_SAID.search(quote):
                yield from (part.strip() for part in quote.split("…"))


@cache
def sentences() -> str:
    """Return all strings of the code but docstrings, and the parts of f-strings, a line each."""
    texts = []
    for package in ("conf", "sources", "state", "sinks", "streaming"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
                    texts.append(node.value)
    return "\n".join(texts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_says_what_a_page_quotes(page: Path) -> None:
    assert [words for words in said(page) if words not in sentences()] == []


def test_quotes_of_what_nothing_says_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("The log says `Kafka has gone … away`, after `delayline run` with `a = 1`.\n")
    assert list(said(page)) == ["Kafka has gone", "away"]
    assert "Kafka has gone" not in sentences()
    assert "Kafka does not answer" in sentences()
