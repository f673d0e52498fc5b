// Schedules messages by NATS's own client, on a NATS server of its own, and writes what the stream has of each.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const publishedMs = 1_798_000_000_000

var due = time.Date(2026, 12, 24, 18, 0, 0, 0, time.UTC)

type schedule struct {
	what    string
	options []jetstream.PublishOpt
	// The header of a publisher that writes it without the client's options.
	header string
}

var schedules = []schedule{
	{"at", []jetstream.PublishOpt{jetstream.WithScheduleAt(due)}, ""},
	{"at, in another zone", []jetstream.PublishOpt{jetstream.WithScheduleAt(due.In(time.FixedZone("", 3600)))}, ""},
	{"at, with a time to live", []jetstream.PublishOpt{
		jetstream.WithScheduleAt(due), jetstream.WithScheduleTTL(time.Minute)}, ""},
	{"at, with an offset", nil, "@at 2026-12-24T19:00:00+01:00"},
	{"at, with milliseconds", nil, "@at 2026-12-24T18:00:00.250Z"},
	{"at, in the past", nil, "@at 2020-01-01T00:00:00Z"},
	{"at, in epoch ms", nil, "@at 1798135200000"},
	{"every", []jetstream.PublishOpt{jetstream.WithScheduleEvery(5 * time.Minute)}, ""},
	{"hourly", []jetstream.PublishOpt{jetstream.WithScheduleCron(jetstream.ScheduleHourly)}, ""},
	{"cron", []jetstream.PublishOpt{jetstream.WithScheduleCron("0 0 5 * * *")}, ""},
	{"at, with a source", []jetstream.PublishOpt{
		jetstream.WithScheduleAt(due), jetstream.WithScheduleSource("measured")}, ""},
	{"a source without a schedule", []jetstream.PublishOpt{jetstream.WithScheduleSource("measured")}, ""},
}

func main() {
	folder := must(os.MkdirTemp("", "nats"))
	defer os.RemoveAll(folder)
	node := must(server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: folder}))
	node.Start()
	defer node.Shutdown()
	if !node.ReadyForConnections(10 * time.Second) {
		panic("the server does not start")
	}
	connection := must(nats.Connect(node.ClientURL()))
	defer connection.Close()
	client := must(jetstream.New(connection))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream := must(client.CreateStream(ctx, jetstream.StreamConfig{
		Name: "schedules", Subjects: []string{"schedules.*", "orders", "measured"}, AllowMsgSchedules: true,
		AllowMsgTTL: true,
	}))
	lines := json.NewEncoder(os.Stdout)
	for number, asked := range schedules {
		subject := fmt.Sprintf("schedules.%d", number)
		message := nats.NewMsg(subject)
		message.Data = []byte("v")
		if asked.header != "" {
			message.Header.Set(jetstream.ScheduleHeader, asked.header)
		}
		_, err := client.PublishMsg(ctx, message, append(asked.options, jetstream.WithScheduleTarget("orders"))...)
		header := message.Header
		if err == nil {
			if stored, missing := stream.GetLastMsgForSubject(ctx, subject); missing == nil {
				header = stored.Header
			}
		}
		var pairs [][]any
		for _, name := range slices.Sorted(maps.Keys(header)) {
			pairs = append(pairs, []any{name, []byte(header.Get(name))})
		}
		var dueMs any
		if err == nil {
			dueMs = instantMs(header)
		}
		lines.Encode(map[string]any{
			"library": libraries(), "case": asked.what, "topic": "schedules", "key": nil, "value": message.Data,
			"headers": pairs, "timestamp_ms": publishedMs,
			"reads": map[string]any{"deliver_at_ms": dueMs, "target": "orders"},
		})
	}
}

// instantMs returns when the server delivers what it has accepted, or nil: more than once, or another message.
func instantMs(header nats.Header) any {
	schedule := header.Get(jetstream.ScheduleHeader)
	if schedule == "" {
		return publishedMs
	}
	// As the server parses it.
	at, isInstant := strings.CutPrefix(schedule, "@at ")
	if !isInstant || header.Get(jetstream.ScheduleSourceHeader) != "" {
		return nil
	}
	return must(time.Parse(time.RFC3339, at)).UnixMilli()
}

func libraries() string {
	var found []string
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/nats-io/nats.go" || module.Path == "github.com/nats-io/nats-server/v2" {
			found = append(found, module.Path+"@"+module.Version)
		}
	}
	return strings.Join(found, ", ")
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
