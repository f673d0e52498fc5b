"""Documents as the checks read them: headings, links, and quoted code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
# Documents in these folders, and in folders below them, are checked.
_FOLDERS = ("docs", "examples", "benchmarks")


@dataclass(frozen=True)
class Quote:
    """Code in a document: text between backticks, or a line of a block. Continued lines of a block are joined."""

    place: str
    text: str


@dataclass(frozen=True)
class Document:
    """A Markdown file of this repository."""

    path: Path

    @cached_property
    def name(self) -> str:
        """The path in the repository."""
        return str(self.path.relative_to(ROOT))

    @cached_property
    def _lines(self) -> list[tuple[int, str, bool]]:
        """Each line with its number, and whether it is in a block of code."""
        lines, fenced, previous = [], False, ""
        for number, line in enumerate(self.path.read_text().splitlines(), 1):
            is_fence = line.lstrip().startswith("```")
            # An indented line begins a block only after an empty line; in a list it continues an item.
            indented = line.startswith("    ") and (not previous or previous.startswith("    "))
            lines.append((number, line, fenced or is_fence or indented))
            fenced ^= is_fence
            previous = line
        return lines

    @cached_property
    def anchors(self) -> set[str]:
        """The anchors that GitHub gives the headings."""
        headings = [line.lstrip("# ") for _, line, code in self._lines if line.startswith("#") and not code]
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

    def links(self) -> Iterator[tuple[str, str]]:
        """Yield each link to a file: its place and its target."""
        for number, line, code in self._lines:
            if not code:
                for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", line):
                    if "://" not in target:
                        yield f"{self.name}:{number}", target

    def prose(self) -> list[str]:
        """Return the paragraphs, the items of lists, and the cells of tables, without blocks of code and headings."""
        texts, ends = [""], True
        for _, line, code in self._lines:
            text = line.strip()
            if code or not text or text.startswith(("#", "|")):
                texts += [cell.strip() for cell in text.split("|")] if text.startswith("|") and not code else []
                ends = True
            elif ends or re.match(r"(?:-|\d+\.) ", text):
                texts.append(re.sub(r"^(?:-|\d+\.) ", "", text))
                ends = False
            else:
                texts[-1] += f" {text}"
        return texts

    def quotes(self) -> Iterator[Quote]:
        """Yield all quoted code."""
        continued = ""
        for number, line, code in self._lines:
            if code:
                continued += line.strip().removesuffix("\\")
                if not line.endswith("\\"):
                    yield Quote(f"{self.name}:{number}", continued)
                    continued = ""
        prose = "\n".join("" if code else line for _, line, code in self._lines)
        for match in re.finditer(r"`([^`]+)`", prose):
            place = f"{self.name}:{prose.count(chr(10), 0, match.start()) + 1}"
            yield Quote(place, " ".join(match[1].replace("\\|", "|").split()))


def all_documents() -> list[Document]:
    """Return every document of this repository."""
    paths = [*ROOT.glob("*.md"), *(path for folder in _FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    return [Document(path) for path in sorted(paths) if "node_modules" not in path.parts]


def all_quotes() -> list[Quote]:
    """Return the quoted code of all documents."""
    return [quote for document in all_documents() for quote in document.quotes()]
