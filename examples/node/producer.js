// Publishes three messages: one at once, one after two seconds, one at an instant.
//
//     node producer.js [SERVERS] [INPUT_TOPIC]
//
// The delay is a header of the record; nothing else differs from any other Kafka producer.
import { Kafka, Partitioners } from "kafkajs";

const [servers = "127.0.0.1:9092", topic = "delayline-in"] = process.argv.slice(2);

const kafka = new Kafka({ brokers: servers.split(",") });
// Idempotence: a retry of the producer must not publish a message twice. Delayline delivers each record once.
const producer = kafka.producer({ idempotent: true, createPartitioner: Partitioners.DefaultPartitioner });

await producer.connect();
// The key decides the output partition, and with it what the message is ordered with.
const published = await producer.send({
  topic,
  messages: [
    { key: "anna", value: "at once" },
    { key: "anna", value: "after two seconds", headers: { "deliver-after": "2s" } },
    { key: "anna", value: "at an instant", headers: { "deliver-at": String(Date.now() + 3000) } },
  ],
});
// The message id, under which a message is delivered (header delayline-id), is topic/partition/offset; KafkaJS returns
// the offset of the first message for each partition.
for (const { topicName, partition, baseOffset } of published) {
  console.log(`${topicName}/${partition}/${baseOffset}`);
}
await producer.disconnect();
