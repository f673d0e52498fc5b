import com.aliyun.openservices.ons.api.impl.rocketmq.ONSUtil;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Consumer;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.schedule.ScheduleMessageService;
import org.apache.rocketmq.broker.util.HookUtils;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.timer.TimerMessageStore;

/** Sets the delays of messages as RocketMQ's publishers do, and writes what its broker makes of their properties. */
public final class Capture {
    private static final String LIBRARY = System.getProperty("library");
    private static final long PUBLISHED_MS = 1_798_000_000_000L;
    private static final long DUE_MS = 1_798_135_200_000L;
    private static final List<String> LINES = new ArrayList<>();
    private static BrokerController broker;
    private static ScheduleMessageService levels;

    public static void main(String[] arguments) throws IOException {
        Path folder = Files.createTempDirectory("rocketmq");
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(folder.toString());
        config.setTimerMaxDelaySec(5 * 365 * 24 * 60 * 60);
        TimerMessageStore timer = new TimerMessageStore(null, config, null, null, null) {
            @Override
            public boolean isReject(long deliverMs) {
                return false;
            }
        };
        // A broker that is never started: it only decides.
        broker = new BrokerController(
            new BrokerConfig(), new NettyServerConfig(), new NettyClientConfig(), config) {
            @Override
            public TimerMessageStore getTimerMessageStore() {
                return timer;
            }

            @Override
            public ScheduleMessageService getScheduleMessageService() {
                return levels;
            }
        };
        levels = new ScheduleMessageService(broker);
        levels.parseDelayLevel();

        capture("level 3", message -> message.setDelayTimeLevel(3));
        capture("a level above the last", message -> message.setDelayTimeLevel(99));
        capture("level 0 and an instant", message -> {
            message.setDelayTimeLevel(0);
            message.setDeliverTimeMs(DUE_MS);
        });
        capture("a negative level", message -> message.setDelayTimeLevel(-1));
        capture("a delay in seconds", message -> message.setDelayTimeSec(7));
        capture("a delay in ms", message -> message.setDelayTimeMs(70_000));
        capture("a negative delay in seconds", message -> message.setDelayTimeSec(-7));
        capture("a negative delay in ms", message -> message.setDelayTimeMs(-7));
        capture("an instant", message -> message.setDeliverTimeMs(DUE_MS));
        capture("an instant in the past", message -> message.setDeliverTimeMs(1_577_836_800_000L));
        capture("all but a level", message -> {
            message.setDeliverTimeMs(DUE_MS);
            message.setDelayTimeMs(70_000);
            message.setDelayTimeSec(7);
        });
        capture("a delay in ms and an instant", message -> {
            message.setDeliverTimeMs(DUE_MS);
            message.setDelayTimeMs(70_000);
        });
        capture("a level and all others", message -> {
            message.setDeliverTimeMs(DUE_MS);
            message.setDelayTimeMs(70_000);
            message.setDelayTimeSec(7);
            message.setDelayTimeLevel(1);
        });
        // Only brokers in the cloud read what it writes, so that nothing here can tell when they deliver it.
        com.aliyun.openservices.ons.api.Message message =
            new com.aliyun.openservices.ons.api.Message("orders", "", "v".getBytes(StandardCharsets.UTF_8));
        message.setStartDeliverTime(DUE_MS);
        Map<String, String> properties = new TreeMap<>(ONSUtil.msgConvert(message).getProperties());
        line(System.getProperty("cloud"), "an instant by the client of the cloud", properties, DUE_MS, null);
        Files.write(Path.of(System.getProperty("captured")), LINES);
        // The broker has threads that nobody waits for.
        System.exit(0);
    }

    private static void capture(String what, Consumer<Message> ask) {
        MessageExtBrokerInner message;
        Map<String, String> published;
        long beforeMs;
        long precisionMs = broker.getMessageStoreConfig().getTimerPrecisionMs();
        do {
            message = new MessageExtBrokerInner();
            message.setTopic("orders");
            message.setBody("v".getBytes(StandardCharsets.UTF_8));
            ask.accept(message);
            published = new TreeMap<>(message.getProperties());
            beforeMs = System.currentTimeMillis();
            if (HookUtils.handleScheduleMessage(broker, message) != null) {
                throw new IllegalStateException(what);
            }
            // A delay counts from the broker's clock, which is to be known, and the broker rounds what it leads to.
        } while (System.currentTimeMillis() != beforeMs || beforeMs % precisionMs != 0);
        String out = message.getProperty(MessageConst.PROPERTY_TIMER_OUT_MS);
        long dueMs = PUBLISHED_MS;
        if (message.getDelayTimeLevel() > 0) {
            dueMs = levels.computeDeliverTimestamp(message.getDelayTimeLevel(), PUBLISHED_MS);
        } else if (out != null) {
            // It takes one unit off, by which it reads ahead.
            long readMs = Long.parseLong(out) + precisionMs;
            dueMs = readMs == DUE_MS ? readMs : PUBLISHED_MS + readMs - beforeMs;
        }
        String target = message.getProperty(MessageConst.PROPERTY_REAL_TOPIC);
        line(LIBRARY, what, published, dueMs, null);
        if (target != null) {
            // What no preset reads, and differs each time.
            MessageAccessor.clearProperty(message, MessageConst.PROPERTY_TIMER_OUT_MS);
            line(LIBRARY, what + ", with the properties that the broker adds", new TreeMap<>(message.getProperties()),
                dueMs, target);
        }
    }

    private static void line(
        String library, String what, Map<String, String> properties, long dueMs, String target) {
        List<String> headers = new ArrayList<>();
        properties.forEach((name, value) -> headers.add("[\"" + name + "\", " + base64(value) + "]"));
        LINES.add("{\"library\": \"" + library + "\", \"case\": \"" + what
            + "\", \"topic\": \"delayed\", \"key\": null, \"value\": " + base64("v") + ", \"headers\": ["
            + String.join(", ", headers) + "], \"timestamp_ms\": " + PUBLISHED_MS + ", \"reads\": {\"deliver_at_ms\": "
            + dueMs + ", \"target\": " + (target == null ? "null" : "\"" + target + "\"") + "}}");
    }

    private static String base64(String text) {
        return "\"" + Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8)) + "\"";
    }
}
