import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Clock;
import java.time.Instant;
import java.time.ZoneOffset;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.function.BiConsumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.MockProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.springframework.context.event.ContextRefreshedEvent;
import org.springframework.context.support.StaticApplicationContext;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.KafkaConsumerBackoffManager;
import org.springframework.kafka.listener.MessageListener;
import org.springframework.kafka.listener.TimestampedException;
import org.springframework.kafka.listener.adapter.KafkaBackoffAwareMessageListenerAdapter;
import org.springframework.kafka.mock.MockProducerFactory;
import org.springframework.kafka.retrytopic.DeadLetterPublishingRecovererFactory;
import org.springframework.kafka.retrytopic.DefaultDestinationTopicProcessor;
import org.springframework.kafka.retrytopic.DefaultDestinationTopicResolver;
import org.springframework.kafka.retrytopic.DestinationTopicProcessor;
import org.springframework.kafka.retrytopic.RetryTopicConfigurationBuilder;
import org.springframework.kafka.retrytopic.RetryTopicHeaders;

/** Lets Spring publish a record to its retry topics, as a listener that fails makes it do, and writes what it sent. */
public final class Capture {
    private static final long PUBLISHED_MS = 1_797_999_000_000L;
    private static final long FAILED_MS = 1_798_000_000_000L;
    private static final long[] BACK_OFFS_MS = {10_000, 30_000};
    private static final String LISTENER = "listener";
    /** Delayline's own headers that say when, one for each message that it has delivered. */
    private static final List<String> SCHEDULES = List.of("deliver-after", "deliver-at", "delay-level");
    private static final List<String> VALUES = List.of("1h", "1797999000000", "18");
    /** Headers of a delivery by Delayline that the recipe does not pass on, the target among them. */
    private static final List<String> NOT_AGAIN = List.of("deliver-after", "deliver-at", "delay-level", "delayline-id",
        "delayline-deliver-at", "delayline-occurrence", "delayline-name", "deliver-to");
    private static final List<String> LINES = new ArrayList<>();

    public static void main(String[] arguments) throws IOException {
        capture("all header values", (factory, template) -> factory.setRetainAllRetryHeaderValues(true));
        capture("the newest header values", (factory, template) -> factory.setRetainAllRetryHeaderValues(false));
        capture("a retry topic behind Delayline", Capture::sendThroughDelayline);
        for (int each = 0; each < SCHEDULES.size(); each++) {
            Headers delivered = new RecordHeaders().add(SCHEDULES.get(each), bytes(VALUES.get(each)))
                .add("delayline-name", bytes("order 7")).add("delayline-id", bytes("delayline-in/0/7"))
                .add("delayline-deliver-at", bytes("1797999000000"));
            capture("a retry topic behind Delayline, after " + SCHEDULES.get(each), delivered,
                Capture::sendThroughDelayline);
        }
        Files.write(Path.of(System.getProperty("captured")), LINES, StandardOpenOption.CREATE,
            StandardOpenOption.APPEND);
    }

    private static void capture(
        String what, BiConsumer<DeadLetterPublishingRecovererFactory, KafkaTemplate<byte[], byte[]>> configure) {
        capture(what, new RecordHeaders(), configure);
    }

    private static void capture(String what, Headers delivered,
        BiConsumer<DeadLetterPublishingRecovererFactory, KafkaTemplate<byte[], byte[]>> configure) {
        // Spring closes a producer that it has used.
        Deque<MockProducer<byte[], byte[]>> producers = new ArrayDeque<>();
        KafkaTemplate<byte[], byte[]> template = new KafkaTemplate<>(new MockProducerFactory<>(() -> {
            producers.add(new MockProducer<>(true, null, new ByteArraySerializer(), new ByteArraySerializer()));
            return producers.getLast();
        }));
        DeadLetterPublishingRecovererFactory factory = new DeadLetterPublishingRecovererFactory(topics(template));
        factory.neverLogListenerException();
        configure.accept(factory, template);

        Headers published = new RecordHeaders().add("trace", bytes("7"));
        delivered.forEach(published::add);
        ConsumerRecord<byte[], byte[]> read =
            read("orders", bytes("order 7"), bytes("{\"id\": 7}"), published, PUBLISHED_MS);
        long failedMs = FAILED_MS;
        for (int attempt = 1; attempt <= BACK_OFFS_MS.length; attempt++) {
            factory.create(LISTENER).accept(
                read, new TimestampedException(new IllegalStateException("no"), Instant.ofEpochMilli(failedMs)));
            ProducerRecord<byte[], byte[]> sent = producers.getLast().history().get(0);
            Header target = sent.headers().lastHeader("deliver-to");
            String topic = target == null ? sent.topic() : new String(target.value(), StandardCharsets.UTF_8);
            // The broker writes the time at which it was sent, where the producer gives none.
            long sentMs = sent.timestamp() == null ? failedMs : sent.timestamp();
            read = read(topic, sent.key(), sent.value(), sent.headers(), sentMs);
            long dueMs = dueMs(read);
            LINES.add(line("retry " + attempt + " with " + what, sent, sentMs, topic, dueMs));
            failedMs = dueMs + 250;
        }
    }

    /** Sends to Delayline's input topic what would go to a retry topic, to which Delayline delivers it. */
    private static void sendThroughDelayline(
        DeadLetterPublishingRecovererFactory factory, KafkaTemplate<byte[], byte[]> template) {
        factory.setDeadLetterPublisherCreator((templates, destinations) ->
            new DeadLetterPublishingRecoverer(record -> template, destinations) {
                @Override
                protected ProducerRecord<Object, Object> createProducerRecord(ConsumerRecord<?, ?> record,
                    TopicPartition destination, Headers headers, byte[] key, byte[] value) {
                    NOT_AGAIN.forEach(headers::remove);
                    headers.add("deliver-to", bytes(destination.topic()));
                    return super.createProducerRecord(
                        record, new TopicPartition("retries", -1), headers, key, value);
                }
            });
    }

    /** Returns the chain of topics that a RetryTopicConfiguration makes of "orders", as RetryTopicConfigurer does. */
    private static DefaultDestinationTopicResolver topics(KafkaTemplate<byte[], byte[]> template) {
        DefaultDestinationTopicResolver resolver = new DefaultDestinationTopicResolver(at(FAILED_MS));
        StaticApplicationContext context = new StaticApplicationContext();
        resolver.setApplicationContext(context);
        DestinationTopicProcessor processor = new DefaultDestinationTopicProcessor(resolver);
        DestinationTopicProcessor.Context topics = new DestinationTopicProcessor.Context(LISTENER,
            RetryTopicConfigurationBuilder.newInstance()
                .exponentialBackoff(BACK_OFFS_MS[0], (double) BACK_OFFS_MS[1] / BACK_OFFS_MS[0], BACK_OFFS_MS[1])
                .maxAttempts(BACK_OFFS_MS.length + 1)
                .create(template)
                .getDestinationTopicProperties());
        processor.processDestinationTopicProperties(
            topic -> processor.registerDestinationTopic("orders", "orders" + topic.suffix(), topic, topics), topics);
        processor.processRegisteredDestinations(names -> { }, topics);
        resolver.onApplicationEvent(new ContextRefreshedEvent(context));
        return resolver;
    }

    /** Returns the instant until which Spring's own listener of retry topics waits. */
    private static long dueMs(ConsumerRecord<byte[], byte[]> record) {
        List<Long> dueMs = new ArrayList<>();
        KafkaConsumerBackoffManager manager = context -> dueMs.add(context.getDueTimestamp());
        MessageListener<byte[], byte[]> listener = message -> { };
        new KafkaBackoffAwareMessageListenerAdapter<>(listener, manager, LISTENER, at(record.timestamp()))
            .onMessage(record, null, null);
        return dueMs.get(0);
    }

    private static Clock at(long instantMs) {
        return Clock.fixed(Instant.ofEpochMilli(instantMs), ZoneOffset.UTC);
    }

    private static ConsumerRecord<byte[], byte[]> read(
        String topic, byte[] key, byte[] value, Headers headers, long timestampMs) {
        return new ConsumerRecord<>(topic, 0, 0, timestampMs, TimestampType.CREATE_TIME, key.length, value.length, key,
            value, new RecordHeaders(headers), Optional.empty());
    }

    private static String line(
        String what, ProducerRecord<byte[], byte[]> sent, long sentMs, String target, long dueMs) {
        List<String> headers = new ArrayList<>();
        for (Header header : sent.headers()) {
            headers.add("[\"" + header.key() + "\", " + base64(header.value()) + "]");
        }
        return "{\"library\": \"" + System.getProperty("library") + "\", \"case\": \"" + what + "\", \"topic\": \""
            + sent.topic() + "\", \"key\": " + base64(sent.key()) + ", \"value\": " + base64(sent.value())
            + ", \"headers\": [" + String.join(", ", headers) + "], \"timestamp_ms\": " + sentMs
            + ", \"reads\": {\"deliver_at_ms\": " + dueMs + ", \"topic\": \"" + target + "\"}}";
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String base64(byte[] value) {
        return value == null ? "null" : "\"" + Base64.getEncoder().encodeToString(value) + "\"";
    }
}
