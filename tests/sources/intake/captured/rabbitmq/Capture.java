import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.springframework.amqp.core.MessageProperties;
import org.springframework.amqp.rabbit.support.DefaultMessagePropertiesConverter;

/** Sets delays as publishers through Spring AMQP do, and writes the headers that go to RabbitMQ, as text. */
public final class Capture {
    private static final long PUBLISHED_MS = 1_798_000_000_000L;

    public static void main(String[] arguments) throws IOException {
        List<String> lines = new ArrayList<>();
        for (long delayMs : new long[] {0, 5_000, MessageProperties.X_DELAY_MAX}) {
            MessageProperties properties = new MessageProperties();
            properties.setDelayLong(delayMs);
            Map<String, Object> headers =
                new DefaultMessagePropertiesConverter().fromMessageProperties(properties, "UTF-8").getHeaders();
            List<String> pairs = new ArrayList<>();
            headers.forEach((name, value) -> pairs.add("[\"" + name + "\", " + base64(value.toString()) + "]"));
            lines.add("{\"library\": \"" + System.getProperty("library") + "\", \"case\": \"" + delayMs
                + " ms\", \"topic\": \"delayed\", \"key\": null, \"value\": " + base64("v") + ", \"headers\": ["
                + String.join(", ", pairs) + "], \"timestamp_ms\": " + PUBLISHED_MS
                + ", \"reads\": {\"deliver_at_ms\": " + (PUBLISHED_MS + delayMs) + "}}");
        }
        Files.write(Path.of(System.getProperty("captured")), lines);
    }

    private static String base64(String text) {
        return "\"" + Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8)) + "\"";
    }
}
