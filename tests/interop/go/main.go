// Clients written in Go, as processes of their own: a member of a group, or a loop that copies a topic in transactions.
//
//	member LIBRARY BOOTSTRAP GROUP TOPIC    LIBRARY: kafka-go, franz-go, or franz-go-848 for group.protocol=consumer
//	copy BOOTSTRAP SOURCE TARGET GROUP      by franz-go; the group is the transactional id too
//
// A member prints the value of each record that it has read and committed. SIGTERM has it leave its group.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	session   = 6 * time.Second
	heartbeat = 200 * time.Millisecond
	// Of a transaction, at most.
	records = 5
)

func main() {
	log.SetOutput(os.Stderr)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var err error
	arguments := os.Args[2:]
	switch os.Args[1] {
	case "member":
		library, seeds, group, topic := arguments[0], strings.Split(arguments[1], ","), arguments[2], arguments[3]
		if library == "kafka-go" {
			err = kafkaGo(ctx, seeds, group, topic)
		} else {
			err = franz(ctx, seeds, group, topic, library == "franz-go-848")
		}
	case "copy":
		err = copyTopic(ctx, strings.Split(arguments[0], ","), arguments[1], arguments[2], arguments[3])
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func kafkaGo(ctx context.Context, seeds []string, group, topic string) error {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers:           seeds,
		GroupID:           group,
		Topic:             topic,
		StartOffset:       kafka.FirstOffset,
		MaxWait:           100 * time.Millisecond,
		SessionTimeout:    session,
		HeartbeatInterval: heartbeat,
	})
	defer reader.Close()
	for {
		message, err := reader.FetchMessage(ctx)
		if err != nil {
			return err
		}
		if err := reader.CommitMessages(ctx, message); err != nil {
			return err
		}
		fmt.Printf("%s\n", message.Value)
	}
}

func franz(ctx context.Context, seeds []string, group, topic string, servedAssignment bool) error {
	options := []kgo.Opt{
		kgo.SeedBrokers(seeds...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(session),
		kgo.HeartbeatInterval(heartbeat),
	}
	if servedAssignment {
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		found := fetches.Records()
		if err := client.CommitRecords(ctx, found...); err != nil {
			return err
		}
		for _, record := range found {
			fmt.Printf("%s\n", record.Value)
		}
		client.AllowRebalance()
	}
}

func copyTopic(ctx context.Context, seeds []string, source, target, group string) error {
	loop, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(seeds...),
		kgo.TransactionalID(group),
		kgo.ConsumerGroup(group),
		kgo.InstanceID(group), // the next process takes over at once from one that is killed
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.SessionTimeout(session),
		kgo.HeartbeatInterval(heartbeat),
	)
	if err != nil {
		return err
	}
	defer loop.Close()
	for {
		fetches := loop.PollRecords(ctx, records)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		if err := loop.Begin(); err != nil {
			return err
		}
		outcome := kgo.AbortingFirstErrPromise(loop.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			copied := &kgo.Record{Topic: target, Partition: record.Partition, Value: record.Value}
			loop.Produce(ctx, copied, outcome.Promise())
		})
		if _, err := loop.End(ctx, kgo.TransactionEndTry(outcome.Err() == nil)); err != nil {
			return err
		}
	}
}
