"""Records that other schedulers' own clients made, and what their consumers read in them: `captured/README.md`."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from sources.intake.accept import accept
from tests.messages import headers, records, some_batch_settings

_CAPTURED = Path(__file__).parent / "captured"


def captured(project: str) -> list[Any]:
    """Return the records of a project as parameters of a test, each a row with what is `read` in it."""
    parameters = []
    for line in (_CAPTURED / f"{project}.jsonl").read_text().splitlines():
        row = json.loads(line)
        row["key"], row["value"] = _bytes(row["key"]), _bytes(row["value"])
        row["headers"] = headers(*((name, _bytes(value)) for name, value in row["headers"]))
        parameters.append(pytest.param(row, id=f"{row['library']}, {row['case']}"))
    return parameters


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def accepted(preset: str, row: dict[str, Any]) -> list[dict[str, Any]]:
    settings = some_batch_settings(presets={row["topic"]: (preset,)}, allowed_outputs=("orders",))
    # As if it were read at once.
    found: list[dict[str, Any]] = accept(records([row]), settings, row["timestamp_ms"]).to_pylist()
    return found


@pytest.mark.parametrize("row", captured("spring-kafka"))
def test_a_retry_of_spring_is_due_when_springs_own_listener_would_go_on(row: dict[str, Any]) -> None:
    (message,) = accepted("spring-retry", row)
    assert (message["error_code"], message["deliver_at_ms"]) == (None, row["reads"]["deliver_at_ms"])
    assert (message["key"], message["value"], message["headers"]) == (row["key"], row["value"], row["headers"])
