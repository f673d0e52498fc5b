import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Shows delivered messages, and how late each is. Ends after COUNT messages, if COUNT is given.
 *
 * <pre>java -cp 'kafka-clients.jar:slf4j-api.jar' DelayedConsumer.java [SERVERS] [OUTPUT_TOPIC] [COUNT]</pre>
 */
public class DelayedConsumer {
    public static void main(String[] args) {
        String servers = args.length > 0 ? args[0] : "127.0.0.1:9092";
        String topic = args.length > 1 ? args[1] : "delayline-out";
        long count = args.length > 2 ? Long.parseLong(args[2]) : Long.MAX_VALUE;

        Properties options = new Properties();
        options.put("bootstrap.servers", servers);
        options.put("group.id", "delayline-example-java");
        options.put("key.deserializer", StringDeserializer.class.getName());
        options.put("value.deserializer", StringDeserializer.class.getName());
        options.put("auto.offset.reset", "earliest");
        // Not the default of this client. Delayline writes a message before it is due, and commits when it is due. An
        // uncommitted reader sees it early, and sees messages of aborted transactions as well.
        options.put("isolation.level", "read_committed");
        options.put("enable.auto.commit", "false");

        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(options)) {
            consumer.subscribe(List.of(topic));
            for (long seen = 0; seen < count; ) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    long late = System.currentTimeMillis() - Long.parseLong(header(record, "delayline-deliver-at"));
                    System.out.println(record.value() + "  " + late + " ms late  " + header(record, "delayline-id"));
                    seen++;
                }
                // After the work is done: what is not committed is read again after a crash.
                consumer.commitSync();
            }
        }
    }

    private static String header(ConsumerRecord<?, ?> record, String name) {
        return new String(record.headers().lastHeader(name).value(), StandardCharsets.UTF_8);
    }
}
