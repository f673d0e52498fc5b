import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Publishes three messages: one at once, one after two seconds, one at an instant.
 *
 * <pre>java -cp 'kafka-clients.jar:slf4j-api.jar' DelayedProducer.java [SERVERS] [INPUT_TOPIC]</pre>
 *
 * The delay is a header of the record; nothing else differs from any other Kafka producer.
 */
public class DelayedProducer {
    public static void main(String[] args) throws Exception {
        String servers = args.length > 0 ? args[0] : "127.0.0.1:9092";
        String topic = args.length > 1 ? args[1] : "delayline-in";

        Properties options = new Properties();
        options.put("bootstrap.servers", servers);
        options.put("key.serializer", StringSerializer.class.getName());
        options.put("value.serializer", StringSerializer.class.getName());
        // A retry of the producer must not publish a message twice. Delayline delivers each record once.
        options.put("enable.idempotence", "true");

        try (KafkaProducer<String, String> producer = new KafkaProducer<>(options)) {
            publish(producer, topic, "at once", null, null);
            publish(producer, topic, "after two seconds", "deliver-after", "2s");
            publish(producer, topic, "at an instant", "deliver-at", "" + (System.currentTimeMillis() + 3_000));
        }
    }

    private static void publish(
            KafkaProducer<String, String> producer, String topic, String value, String header, String schedule)
            throws Exception {
        // The key decides the output partition, and with it what the message is ordered with.
        ProducerRecord<String, String> record = new ProducerRecord<>(topic, "anna", value);
        if (header != null) {
            record.headers().add(header, schedule.getBytes(StandardCharsets.UTF_8));
        }
        var published = producer.send(record).get();
        // The message id, under which the message is delivered (header delayline-id).
        System.out.println(published.topic() + "/" + published.partition() + "/" + published.offset());
    }
}
