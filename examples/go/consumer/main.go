// Shows delivered messages, and how late each is. Ends after COUNT messages, if COUNT is given.
//
//	go run ./consumer [SERVERS] [OUTPUT_TOPIC] [COUNT]
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
	servers, topic, count := argument(1, "127.0.0.1:9092"), argument(2, "delayline-out"), argument(3, "0")
	limit, err := strconv.Atoi(count)
	if err != nil {
		log.Fatal(err)
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(servers, ",")...),
		kgo.ConsumerGroup("delayline-example-go"),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// Not the default of this client. Delayline writes a message before it is due, and commits when it is due. An
		// uncommitted reader sees it early, and sees messages of aborted transactions as well.
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx := context.Background()
	for seen := 0; limit == 0 || seen < limit; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			log.Fatal(err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			deliverAt, err := strconv.ParseInt(header(record, "delayline-deliver-at"), 10, 64)
			if err != nil {
				log.Fatal(err)
			}
			late := time.Now().UnixMilli() - deliverAt
			fmt.Printf("%s  %d ms late  %s\n", record.Value, late, header(record, "delayline-id"))
			seen++
		})
		// After the work is done: what is not committed is read again after a crash.
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			log.Fatal(err)
		}
	}
}

func argument(at int, otherwise string) string {
	if len(os.Args) > at {
		return os.Args[at]
	}
	return otherwise
}

func header(record *kgo.Record, name string) string {
	for _, header := range record.Headers {
		if header.Key == name {
			return string(header.Value)
		}
	}
	return ""
}
