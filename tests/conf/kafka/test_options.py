"""Kafka options: which client gets which of them, in which form, and which are refused."""

from __future__ import annotations

import confluent_kafka
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from conf.kafka import option_names as kafka_names
from conf.kafka.options import java_options, kafka_python_options, librdkafka_options
from tests.conf.kafka.option_tables import LOGIN, kafka, refused


def test_without_options_each_client_gets_the_servers_only() -> None:
    assert java_options(kafka()) == {"bootstrap.servers": "a:1,b:2"}
    assert librdkafka_options(kafka()) == {"bootstrap.servers": "a:1,b:2"}
    assert kafka_python_options(kafka()) == {"bootstrap_servers": ["a:1", "b:2"]}


def test_an_option_that_all_clients_know_goes_to_each_in_its_type() -> None:
    settings = kafka({"client.id": "me", "request.timeout.ms": 5000})
    assert java_options(settings)["client.id"] == librdkafka_options(settings)["client.id"] == "me"
    assert java_options(settings)["request.timeout.ms"] == librdkafka_options(settings)["request.timeout.ms"] == "5000"
    assert kafka_python_options(settings) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "client_id": "me",
        "request_timeout_ms": 5000,
    }


def test_an_option_that_one_client_knows_goes_to_that_client_only() -> None:
    settings = kafka({"linger.ms": 5, "default.api.timeout.ms": 7, "max.poll.records": 9})
    assert librdkafka_options(settings) == {"bootstrap.servers": "a:1,b:2", "linger.ms": "5"}
    assert java_options(settings).keys() == {
        "bootstrap.servers",
        "default.api.timeout.ms",
        "max.poll.records",
    }
    assert kafka_python_options(settings).keys() == {"bootstrap_servers"}


@pytest.mark.parametrize("name", ["bootstrap.servers", "transactional.id", "group.id", "acks", "ssl.ca.pem"])
def test_an_option_that_delayline_sets_itself_is_refused(name: str) -> None:
    assert f"kafka.{name} is not allowed: " in refused({name: "x"})


def test_a_queue_bound_that_one_message_may_exceed_is_refused() -> None:
    name = "queue.buffering.max.kbytes"
    assert f"kafka.{name} is not allowed: messages above it" in refused({name: 512})


def test_an_option_that_hides_topics_is_refused() -> None:
    assert "kafka.topic.blacklist is not allowed: Delayline could not read" in refused({"topic.blacklist": "^orders"})


def test_unknown_options_are_all_named_with_the_nearest_known_one() -> None:
    text = refused({"clientid": "x", "qqqqqq": "y"})
    assert "kafka.clientid: unknown setting; did you mean kafka.client.id?" in text
    assert "kafka.qqqqqq: unknown setting; no Kafka client knows it" in text


def test_a_numeric_option_of_kafka_python_must_be_a_number() -> None:
    assert "kafka.request.timeout.ms = '5s': allowed is a whole number" in refused({"request.timeout.ms": "5s"})


def test_kafka_python_knows_every_name_it_may_get() -> None:
    names = {n.replace(".", "_") for n in kafka_names.KAFKA_PYTHON_TEXT | kafka_names.KAFKA_PYTHON_NUMBERS}
    security = {
        "security_protocol",
        "sasl_mechanism",
        "sasl_plain_username",
        "sasl_plain_password",
        "ssl_cafile",
    }
    security |= {"ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_crlfile", "ssl_check_hostname"}
    for client in (KafkaProducer, KafkaConsumer, KafkaAdminClient):
        assert names | security <= client.DEFAULT_CONFIG.keys()


@pytest.mark.parametrize("name", sorted(kafka_names.SHARED | kafka_names.LIBRDKAFKA_ONLY))
def test_librdkafka_knows_every_name_it_may_get(name: str) -> None:
    # No property accepts this value: the error differs between an unknown name and a known one with a wrong value.
    try:
        confluent_kafka.Producer({name: "\u2620"})
    except confluent_kafka.KafkaException as error:
        assert "No such configuration property" not in str(error)  # noqa: PT017 - no error is fine too


def test_confluent_kafka_starts_with_a_full_login() -> None:
    options = librdkafka_options(kafka({**LOGIN, "ssl.endpoint.identification.algorithm": "", "client.id": "me"}))
    confluent_kafka.Producer(options)
    confluent_kafka.Consumer({**options, "group.id": "g"})
