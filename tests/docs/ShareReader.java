import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Reads a topic with Kafka's own share consumer, from the beginning, and prints the value of each record, up to "last".
 *
 * Arguments: the broker, the topic, the share group, and settings of that group such as share.isolation.level=read_committed.
 */
class ShareReader {
    private static boolean hasShareGroups(Admin admin) throws Exception {
        return admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("share.version");
    }

    public static void main(String[] args) throws Exception {
        Map<String, Object> broker = Map.of("bootstrap.servers", args[0]);
        try (Admin admin = Admin.create(broker)) {
            if (!hasShareGroups(admin)) {
                FeatureUpdate share = new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE);
                admin.updateFeatures(Map.of("share.version", share), new UpdateFeaturesOptions()).all().get();
                while (!hasShareGroups(admin)) {
                    Thread.sleep(50);
                }
            }
            List<AlterConfigOp> changes = new ArrayList<>();
            changes.add(new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), OpType.SET));
            for (int at = 3; at < args.length; at++) {
                String[] pair = args[at].split("=");
                changes.add(new AlterConfigOp(new ConfigEntry(pair[0], pair[1]), OpType.SET));
            }
            ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, args[2]);
            admin.incrementalAlterConfigs(Map.of(group, changes)).all().get();
        }
        Map<String, Object> options = Map.of("bootstrap.servers", args[0], "group.id", args[2]);
        StringDeserializer text = new StringDeserializer();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(options, text, text)) {
            consumer.subscribe(Set.of(args[1]));
            for (String value = ""; !value.equals("last"); ) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    value = record.value();
                    System.out.println(value);
                }
            }
        }
    }
}
