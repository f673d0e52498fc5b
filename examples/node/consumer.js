// Shows delivered messages, and how late each is. Ends after COUNT messages, if COUNT is given.
//
//     node consumer.js [SERVERS] [OUTPUT_TOPIC] [COUNT]
import { Kafka } from "kafkajs";

const [servers = "127.0.0.1:9092", topic = "delayline-out", count = "Infinity"] = process.argv.slice(2);

const kafka = new Kafka({ brokers: servers.split(",") });
const consumer = kafka.consumer({
  groupId: "delayline-example-node",
  // Read committed records only (the default of KafkaJS, written out). Delayline writes a message before it is due, and
  // commits when it is due. An uncommitted reader sees it early, and sees messages of aborted transactions as well.
  readUncommitted: false,
});

await consumer.connect();
await consumer.subscribe({ topic, fromBeginning: true });
let seen = 0;
await consumer.run({
  autoCommit: false,
  eachMessage: async ({ partition, message }) => {
    const late = Date.now() - Number(message.headers["delayline-deliver-at"]);
    console.log(`${message.value}  ${late} ms late  ${message.headers["delayline-id"]}`);
    // After the work is done: what is not committed is read again after a crash.
    await consumer.commitOffsets([{ topic, partition, offset: String(Number(message.offset) + 1) }]);
    seen += 1;
    if (seen === Number(count)) {
      // Not awaited: disconnecting waits for this function to return.
      consumer.disconnect().then(() => process.exit(0));
    }
  },
});
