import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.ScheduledMessage;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.broker.scheduler.Job;
import org.apache.activemq.broker.scheduler.JobScheduler;
import org.apache.activemq.broker.scheduler.memory.InMemoryJob;

/** Sends messages with delays to an ActiveMQ broker in this process, and writes when its scheduler would deliver each. */
public final class Capture {
    private static final long PUBLISHED_MS = 1_798_000_000_000L;

    private interface Ask {
        void of(Message message) throws Exception;
    }

    private final List<String> lines = new ArrayList<>();
    private final JobScheduler scheduler;
    private final Session session;
    private final MessageProducer producer;

    private Capture(JobScheduler scheduler, Session session) throws Exception {
        this.scheduler = scheduler;
        this.session = session;
        this.producer = session.createProducer(session.createQueue("orders"));
    }

    public static void main(String[] arguments) throws Exception {
        BrokerService broker = new BrokerService();
        broker.setPersistent(false);
        broker.setUseJmx(false);
        broker.setSchedulerSupport(true);
        broker.start();
        try (Connection connection =
                new ActiveMQConnectionFactory("vm://localhost?create=false").createConnection()) {
            connection.start();
            JobScheduler scheduler = broker.getJobSchedulerStore().getJobScheduler("JMS");
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            Capture capture = new Capture(scheduler, session);
            capture.all();
            Files.write(Path.of(System.getProperty("captured")), capture.lines);
        } finally {
            broker.stop();
        }
    }

    private void all() throws Exception {
        send("a delay", message -> delay(message, 60_000));
        send("a delay as text", message -> message.setStringProperty(ScheduledMessage.AMQ_SCHEDULED_DELAY, "60000"));
        send("a period", message -> period(message, 30_000));
        send("a delay and a period", message -> {
            delay(message, 60_000);
            period(message, 30_000);
        });
        send("a delay of 0", message -> delay(message, 0));
        send("a delay of 0, and a period", message -> {
            delay(message, 0);
            period(message, 30_000);
        });
        send("no repeats", message -> {
            delay(message, 60_000);
            period(message, 30_000);
            message.setIntProperty(ScheduledMessage.AMQ_SCHEDULED_REPEAT, 0);
        });
        send("repeats", message -> {
            delay(message, 60_000);
            period(message, 30_000);
            message.setIntProperty(ScheduledMessage.AMQ_SCHEDULED_REPEAT, 9);
        });
        send("cron", message -> message.setStringProperty(ScheduledMessage.AMQ_SCHEDULED_CRON, "0 5 * * *"));
        send("repeats without a schedule",
            message -> message.setIntProperty(ScheduledMessage.AMQ_SCHEDULED_REPEAT, 9));
    }

    private static void delay(Message message, long ms) throws Exception {
        message.setLongProperty(ScheduledMessage.AMQ_SCHEDULED_DELAY, ms);
    }

    private static void period(Message message, long ms) throws Exception {
        message.setLongProperty(ScheduledMessage.AMQ_SCHEDULED_PERIOD, ms);
    }

    @SuppressWarnings("unchecked")
    private void send(String what, Ask ask) throws Exception {
        scheduler.removeAllJobs();
        Message message = session.createTextMessage("v");
        ask.of(message);
        List<String> headers = new ArrayList<>();
        for (String name : (List<String>) Collections.list(message.getPropertyNames())) {
            headers.add("[\"" + name + "\", " + base64(message.getStringProperty(name)) + "]");
        }
        Collections.sort(headers);
        producer.send(message);
        // Without a job it was sent on at once.
        long delayMs = 0;
        boolean repeats = false;
        for (Job each : scheduler.getAllJobs()) {
            InMemoryJob job = (InMemoryJob) each;
            delayMs = Math.max(0, job.getNextTime() - job.getStart());
            repeats = job.getRepeat() != 0 || job.isCron();
        }
        lines.add("{\"library\": \"" + System.getProperty("library") + "\", \"case\": \"" + what
            + "\", \"topic\": \"delayed\", \"key\": null, \"value\": " + base64("v") + ", \"headers\": ["
            + String.join(", ", headers) + "], \"timestamp_ms\": " + PUBLISHED_MS + ", \"reads\": {\"deliver_at_ms\": "
            + (repeats ? "null" : PUBLISHED_MS + delayMs) + "}}");
    }

    private static String base64(String text) {
        return "\"" + Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8)) + "\"";
    }
}
