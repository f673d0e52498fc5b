"""The Markdown of the generated pages: their head, paragraphs and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable

HEAD = "<!-- Written by docs/generate.py from {source}. Change that, then run `make docs`. -->\n# {title}\n"


def text_of(text: str | None) -> str:
    """Return a docstring's paragraphs, each on one line."""
    paragraphs = re.split(r"\n\s*\n", (text or "").strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table, with a line at its end."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    # GitHub reads <name> as HTML, except in code.
    parts = re.split(r"(`[^`]*`)", text.replace("\n\n", " ").replace("|", "\\|"))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)
