"""An application with dead letters, and the command that resends them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from itertools import count
from typing import Any

from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from conf.settings import Settings
from sources.subscriber import Received, Subscriber
from streaming.cli.app import app
from streaming.local.broker import EmbeddedBroker

PATIENCE_MS = 20_000
HOUR_AGO_MS = int(time.time() * 1000) - 3_600_000
Headers = list[tuple[str, bytes | None]]


@dataclass
class Desk:
    """An application with dead letters, and the command that resends them."""

    settings: Settings
    broker: EmbeddedBroker

    def __post_init__(self) -> None:
        options = {"bootstrap.servers": self.broker.bootstrap, "compression.type": "lz4"}
        self._producer = Producer({**options, "transactional.id": f"{self.settings.application_id}:0"})
        self._producer.init_transactions(30)
        self._offsets = count(100)

    @property
    def input(self) -> str:
        return self.settings.topics.input[0]

    def add(self, *letters: dict[str, Any], commit: bool = True) -> list[str]:
        """Write dead letters as the job does, in a transaction; return their ids."""
        self._producer.begin_transaction()
        ids = []
        for letter in letters:
            identity = f"{letter.get('topic', self.input)}/{letter.get('input_partition', 0)}/{next(self._offsets)}"
            ids.append(identity)
            code = letter.get("code", "bad-deliver-after")
            service_headers = [("delayline-id", identity.encode()), ("delayline-error", code.encode())]
            service_headers.append(("delayline-error-text", f"{code}: why".encode()))
            published_ms = letter.get("published_ms", HOUR_AGO_MS)
            service_headers.append(("delayline-timestamp", str(published_ms).encode()))
            self._producer.produce(
                self.settings.topics.dead_letter,
                letter.get("value", b"v"),
                letter.get("key"),
                letter.get("partition", 0),
                headers=[*letter.get("headers", []), *service_headers],
            )
        assert self._producer.flush(30) == 0
        if commit:
            self._producer.commit_transaction(30)
        else:
            self._producer.abort_transaction(30)
        return ids

    def resend(self, *arguments: str) -> Result:
        topics = self.settings.topics
        sets = [
            f"kafka.bootstrap_servers={self.broker.bootstrap}",
            f"application_id={self.settings.application_id}",
            f"topics.input={','.join(topics.input)}",
            f"topics.output={topics.output}",
            f"topics.dead_letter={topics.dead_letter}",
        ]
        options = [part for one in sets for part in ("--set", one)]
        return CliRunner().invoke(app, ["resend", *arguments, *options], env={"DELAYLINE_CONFIG": None})

    def resent(self, *arguments: str) -> list[str]:
        """Resend, and return the first ids of the resent messages."""
        result = self.resend("--format", "json", *arguments)
        assert result.exit_code == 0, result.output
        return [json.loads(line)["id"] for line in result.stdout.splitlines()]

    def inputs(self, expected: int) -> list[Received]:
        """Return the `expected` records of the input topic, and one more if there is one."""
        if not expected:
            # It begins at the end: nothing was ever written.
            with Subscriber(self.settings, self.input) as subscriber:
                assert not any(subscriber.start_offsets.values())
        with Subscriber(self.settings, self.input, from_beginning=True) as subscriber:
            records = list(subscriber.records(expected, PATIENCE_MS))
            assert len(records) == expected
            return records + list(subscriber.records(1, 300))
