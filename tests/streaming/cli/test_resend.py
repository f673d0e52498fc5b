"""The output of `delayline resend` for a position that it did not write."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner

from conf.settings import Settings
from sinks.topics.topics import ensure_topics
from sources.dead_letters.reader import resend_group
from streaming.cli.app import app


def test_a_position_that_no_resend_wrote_is_shown_in_the_error_and_not_changed(settings: Settings) -> None:
    ensure_topics(settings, 2)
    topics = settings.topics
    consumer = Consumer(
        {
            "bootstrap.servers": settings.kafka.bootstrap_servers,
            "group.id": resend_group(settings.application_id),
            "enable.auto.commit": False,
        }
    )
    position = TopicPartition(topics.dead_letter, 1, 3, metadata="of another program")
    consumer.commit(offsets=[position], asynchronous=False)
    overrides = [
        f"application_id={settings.application_id}",
        f"kafka.bootstrap_servers={settings.kafka.bootstrap_servers}",
        f"topics.input={topics.input[0]}",
        f"topics.output={topics.output}",
        f"topics.dead_letter={topics.dead_letter}",
    ]
    sets = [part for one in overrides for part in ("--set", one)]
    result = CliRunner().invoke(app, ["resend", *sets], env={"DELAYLINE_CONFIG": None})
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == (
        "error: position-invalid: offset 3 was committed with the text 'of another program', "
        "which `delayline resend` did not write"
    )
    (kept,) = consumer.committed([TopicPartition(topics.dead_letter, 1)], 30)
    assert (kept.offset, kept.metadata) == (3, "of another program")
    consumer.close()
