"""The option names of the three Kafka clients, and the names that only Delayline itself may set."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names as of kafka-clients 3.9 (consumer and admin) and librdkafka 2.16, without those in the tables below.
SHARED = _names(
    """
    allow.auto.create.topics check.crcs client.dns.lookup client.id client.rack connections.max.idle.ms
    enable.metrics.push fetch.max.bytes fetch.min.bytes heartbeat.interval.ms
    max.partition.fetch.bytes max.poll.interval.ms metadata.max.age.ms metadata.recovery.strategy
    reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
    retry.backoff.ms sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
    sasl.kerberos.service.name session.timeout.ms socket.connection.setup.timeout.ms
    """
)
LIBRDKAFKA_ONLY = _names(
    """
    api.version.fallback.ms api.version.request api.version.request.timeout.ms batch.num.messages
    batch.size broker.address.family broker.address.ttl broker.version.fallback compression.codec
    compression.level compression.type coordinator.query.interval.ms debug delivery.timeout.ms
    enable.random.seed fetch.error.backoff.ms fetch.message.max.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms linger.ms log.connection.close log.thread.name log_level
    max.in.flight max.in.flight.requests.per.connection message.copy.max.bytes message.max.bytes
    message.send.max.retries message.timeout.ms metadata.recovery.rebootstrap.trigger.ms
    plugin.library.paths queue.buffering.backpressure.threshold
    queue.buffering.max.messages queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages
    receive.message.max.bytes reconnect.backoff.jitter.ms sasl.kerberos.keytab sasl.kerberos.principal
    socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes
    socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores ssl.crl.location ssl.curves.list
    ssl.engine.id ssl.engine.location ssl.providers ssl.sigalgs.list statistics.interval.ms
    sticky.partitioning.linger.ms topic.metadata.propagation.max.ms
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.sparse
    """
)
# Pairs of names for the same option. An error of librdkafka has one of them, whichever was set.
ALIASES = (
    ("compression.type", "compression.codec"),
    ("delivery.timeout.ms", "message.timeout.ms"),
    ("linger.ms", "queue.buffering.max.ms"),
    ("max.in.flight.requests.per.connection", "max.in.flight"),
    ("max.partition.fetch.bytes", "fetch.message.max.bytes"),
    ("retries", "message.send.max.retries"),
)
JAVA_ONLY = _names(
    """
    auto.include.jmx.reporter default.api.timeout.ms exclude.internal.topics fetch.max.wait.ms
    max.poll.records metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
    receive.buffer.bytes sasl.client.callback.handler.class sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
    sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
    security.providers send.buffer.bytes socket.connection.setup.timeout.max.ms ssl.enabled.protocols
    ssl.engine.factory.class ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
    ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
    ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
    ssl.truststore.location ssl.truststore.password ssl.truststore.type
    """
)
# Accepted by producer, consumer and admin client of kafka-python alike.
KAFKA_PYTHON_TEXT = _names("client.dns.lookup client.id sasl.kerberos.service.name")
KAFKA_PYTHON_NUMBERS = _names(
    """
    connections.max.idle.ms max.in.flight.requests.per.connection metadata.max.age.ms metrics.num.samples
    metrics.sample.window.ms receive.buffer.bytes receive.message.max.bytes reconnect.backoff.max.ms
    reconnect.backoff.ms request.timeout.ms retry.backoff.ms send.buffer.bytes
    """
)
TRANSLATED = _names(
    """
    enable.ssl.certificate.verification https.ca.location sasl.jaas.config sasl.mechanism sasl.mechanisms
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.extensions
    sasl.oauthbearer.method sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url sasl.password
    sasl.username security.protocol ssl.ca.location ssl.certificate.location
    ssl.endpoint.identification.algorithm ssl.key.location ssl.key.password
    """
)
FILES = _names(
    """
    https.ca.location ssl.ca.location ssl.certificate.location ssl.crl.location ssl.key.location
    ssl.keystore.location ssl.truststore.location
    """
)
# Delayline sets these itself, since its guarantees depend on them, or some client does not have them.
REFUSED = {
    "bootstrap.servers": "write kafka.bootstrap_servers",
    "metadata.broker.list": "write kafka.bootstrap_servers",
    "transaction.timeout.ms": "write release.transaction_timeout",
    "ssl.ca.pem": "set ssl.ca.location to a file",
    "ssl.certificate.pem": "set ssl.certificate.location to a file",
    "ssl.key.pem": "set ssl.key.location to a file",
    # For a larger message the client would report "queue full" forever, with an empty queue.
    "queue.buffering.max.kbytes": "messages above it could never be sent, and transactions already bound the queue",
    "topic.blacklist": "Delayline could not read or write a topic that this option hides",
    "ssl.cipher.suites": "the clients use different names for ciphers. Limit ciphers at the broker",
} | dict.fromkeys(
    _names(
        """
        acks auto.commit.enable auto.commit.interval.ms auto.offset.reset enable.auto.commit
        enable.auto.offset.store enable.gapless.guarantee enable.idempotence enable.partition.eof
        group.id group.instance.id group.protocol interceptor.classes isolation.level key.deserializer key.serializer
        partition.assignment.strategy partitioner partitioner.class request.required.acks
        transactional.id value.deserializer value.serializer
        """
    ),
    "Delayline sets this option itself. Remove it",
)
KNOWN = SHARED | LIBRDKAFKA_ONLY | JAVA_ONLY | TRANSLATED | KAFKA_PYTHON_NUMBERS
