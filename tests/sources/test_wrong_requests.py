"""Requests that no message can have, and wrong calls of the commands: they end before anything is asked."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from conf.errors import UsageError
from sources.canceller import requests_for
from state.cancel import DELIVER_NOW_HEADER
from streaming.cli.app import app
from tests.sources.asked_topics import NAMED


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"ids": ["in/0/1", "x"]}, "'x': a message id has"),
        ({"ids": ["in/0/1", "other/0/1"]}, "other is not in topics.input"),
        ({"ids": ["in/0/-1"]}, "a message id has"),
        ({"ids": ["in/0/" + "9" * 5_000]}, "in/0/9"),
        ({"ids": ["in/0/1"], "names": ["call"], "topic": "other"}, "other is not in topics.input"),
        ({"ids": [], "names": ["call"]}, "messages of in have no names: policies.names is off"),
        ({"ids": [], "names": ["call", ""], "topic": "named"}, "name '': a name must have 1 to 1024 bytes"),
        ({"ids": [], "names": ["ö" * 513], "topic": "named"}, "a name must have 1 to 1024 bytes"),
    ],
)
def test_what_no_message_can_have_is_not_asked_for(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        requests_for(NAMED, **wrong)


@pytest.mark.parametrize("topic", ["named", "jobs"])
def test_a_name_is_asked_for_where_a_policy_or_a_preset_gives_messages_names(topic: str) -> None:
    by_id, by_name = requests_for(NAMED, ["in/2/7"], ["ö" * 512], topic)
    assert (by_id.topic, by_id.partition, by_id.key, by_id.header[1]) == ("in", 2, None, b"in/2/7")
    assert (by_name.topic, by_name.key) == (topic, ("ö" * 512).encode())


@pytest.mark.parametrize(
    ("arguments", "stdin", "why"),
    [
        (["--name", ""], b"", "messages of in have no names"),
        (["--name", "", "--topic", "named"], b"", "a name must have 1 to 1024 bytes"),
        (["--name", "call"], b"", "messages of in have no names"),
        (["--topic", "in", "in/0/5"], b"", "contains its topic"),
        ([], b"\n", "give at least one message id"),
        ([], b"in/0/1\n\nin/0/\xff2\n", r"line 3 of standard input, b'in/0/\xff2\n': write UTF-8"),
        ([], b"in/0/1\nin/0\n", "'in/0': a message id has"),
    ],
)
def test_a_wrong_call_ends_before_anything_is_asked(arguments: list[str], stdin: bytes, why: str) -> None:
    options = ["topics.input=in,named", "policies.named.names=key", "kafka.bootstrap_servers=127.0.0.1:1"]
    sets = [part for option in options for part in ("--set", option)]
    run = CliRunner().invoke(app, ["cancel", *arguments, *sets], input=stdin, env={"DELAYLINE_CONFIG": None})
    assert (run.exit_code, run.stdout) == (2, "")
    assert run.stderr.startswith("error: bad-usage: ")
    assert why in run.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "why"),
    [
        ([], b"\n", "give at least one message id"),
        ([], b"in/0/1\n\nin/0/\xff2\n", r"line 3 of standard input, b'in/0/\xff2\n': write UTF-8"),
        (["in/0"], b"", "'in/0': a message id has the form"),
        (["other/0/1"], b"", "other is not in topics.input"),
        (["--timeout", "soon", "in/0/1"], b"", "--timeout"),
        (["--header", "x", "in/0/1"], b"", "--header"),
        (["--header", "delayline-cancel=in/0/2", "in/0/1"], b"", "--header delayline-cancel: this header has"),
        (["--header", "Delayline-Name=x", "in/0/1"], b"", "--header Delayline-Name: this header has"),
    ],
)
def test_a_wrong_call_to_deliver_now_ends_before_anything_is_asked(
    arguments: list[str], stdin: bytes, why: str
) -> None:
    sets = ["--set", "topics.input=in", "--set", "kafka.bootstrap_servers=127.0.0.1:1"]
    run = CliRunner().invoke(app, ["deliver-now", *arguments, *sets], input=stdin, env={"DELAYLINE_CONFIG": None})
    assert (run.exit_code, run.stdout) == (2, "")
    assert why in run.stderr


def test_what_shall_be_due_at_once_is_asked_for_in_the_partition_of_the_message() -> None:
    (request,) = requests_for(NAMED, ["in/2/7"], header=DELIVER_NOW_HEADER)
    assert (request.topic, request.partition, request.key, request.header) == (
        "in",
        2,
        None,
        ("delayline-deliver-now", b"in/2/7"),
    )
