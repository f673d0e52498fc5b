// Publishes three messages: one at once, one after two seconds, one at an instant.
//
//	go run ./producer [SERVERS] [INPUT_TOPIC]
//
// The delay is a header of the record; nothing else differs from any other Kafka producer.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	servers, topic := argument(1, "127.0.0.1:9092"), argument(2, "delayline-in")
	// Idempotent by default: a retry does not publish a message twice. Delayline delivers each record once.
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(servers, ",")...), kgo.DefaultProduceTopic(topic))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	inThreeSeconds := strconv.FormatInt(time.Now().Add(3*time.Second).UnixMilli(), 10)
	// The key decides the output partition, and with it what the message is ordered with.
	records := []*kgo.Record{
		{Key: []byte("anna"), Value: []byte("at once")},
		{Key: []byte("anna"), Value: []byte("after two seconds"), Headers: header("deliver-after", "2s")},
		{Key: []byte("anna"), Value: []byte("at an instant"), Headers: header("deliver-at", inThreeSeconds)},
	}
	for _, result := range client.ProduceSync(context.Background(), records...) {
		if result.Err != nil {
			log.Fatal(result.Err)
		}
		// The message id, under which the message is delivered (header delayline-id).
		fmt.Printf("%s/%d/%d\n", result.Record.Topic, result.Record.Partition, result.Record.Offset)
	}
}

func header(name, value string) []kgo.RecordHeader {
	return []kgo.RecordHeader{{Key: name, Value: []byte(value)}}
}

func argument(at int, otherwise string) string {
	if len(os.Args) > at {
		return os.Args[at]
	}
	return otherwise
}
