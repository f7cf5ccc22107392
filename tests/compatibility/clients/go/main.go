// Runs cases of Google's Go client against PUBSUB_EMULATOR_HOST: reads the name of a case from each line of its input and
// prints its result as a line of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
)

const (
	project = "projects/shop"
	// How long a case may wait for its messages.
	patience = 60 * time.Second
)

// result is the report of a case.
type result struct {
	Case  string `json:"case"`
	Error string `json:"error"`
}

// cases take a client and panic where something isn't as it should be.
var cases = map[string]func(context.Context, *pubsub.Client){
	"publish":         publishAndReceive,
	"ordered":         ordered,
	"ordered-streams": orderedStreams,
	"streaming":       streaming,
	"exactly-once":    exactlyOnce,
	"dead-letters":    deadLetters,
	"schemas":         schemas,
	"iam":             policies,
	"tracing":         tracing,
	"idle":            idle,
	"shutdown":        shutdown,
	"restarts":        restarts,
}

func main() {
	ctx := context.Background()
	client, err := pubsub.NewClient(ctx, "shop")
	check(err)
	defer client.Close()
	lines, results := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for lines.Scan() {
		check(results.Encode(result{Case: lines.Text(), Error: run(ctx, client, lines.Text())}))
	}
}

// run returns why a case failed; nothing if it didn't.
func run(ctx context.Context, client *pubsub.Client, name string) (failure string) {
	defer func() {
		if reason := recover(); reason != nil {
			failure = fmt.Sprint(reason)
		}
	}()
	test, isKnown := cases[name]
	expect(isKnown, "there is no case %q", name)
	test(ctx, client)
	return ""
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func expect(isTrue bool, format string, values ...any) {
	if !isTrue {
		panic(fmt.Sprintf(format, values...))
	}
}

func createTopic(ctx context.Context, client *pubsub.Client, topic *pubsubpb.Topic) string {
	topic.Name = project + "/topics/" + topic.Name
	_, err := client.TopicAdminClient.CreateTopic(ctx, topic)
	check(err)
	return topic.Name
}

// createSubscription subscribes to a topic; the subscription gets the last part of the topic's name.
func createSubscription(ctx context.Context, client *pubsub.Client, topic string, fields *pubsubpb.Subscription) string {
	fields.Topic = topic
	fields.Name = project + "/subscriptions/" + topic[len(project+"/topics/"):]
	_, err := client.SubscriptionAdminClient.CreateSubscription(ctx, fields)
	check(err)
	return fields.Name
}

// create creates a topic and a subscription to it, and returns their names.
func create(ctx context.Context, client *pubsub.Client, name string, fields *pubsubpb.Subscription) (string, string) {
	topic := createTopic(ctx, client, &pubsubpb.Topic{Name: name})
	return topic, createSubscription(ctx, client, topic, fields)
}

// publish publishes messages and returns when the server has them all.
func publish(ctx context.Context, client *pubsub.Client, topic string, messages ...*pubsub.Message) {
	publisher := client.Publisher(topic)
	defer publisher.Stop()
	publisher.EnableMessageOrdering = messages[0].OrderingKey != ""
	var pending []*pubsub.PublishResult
	for _, message := range messages {
		pending = append(pending, publisher.Publish(ctx, message))
	}
	ids := map[string]bool{}
	for _, publishing := range pending {
		id, err := publishing.Get(ctx)
		check(err)
		ids[id] = true
	}
	expect(len(ids) == len(messages), "%d ids for %d messages", len(ids), len(messages))
}

func numbered(count int) (messages []*pubsub.Message) {
	for number := range count {
		messages = append(messages, &pubsub.Message{Data: fmt.Append(nil, number)})
	}
	return messages
}

// receive hands messages to a function, one at a time, until it returns true; later messages are nacked.
func receive(ctx context.Context, subscriber *pubsub.Subscriber, isDone func(*pubsub.Message) bool) {
	receiveWithin(ctx, patience, subscriber, isDone)
}

func receiveWithin(
	ctx context.Context, limit time.Duration, subscriber *pubsub.Subscriber, isDone func(*pubsub.Message) bool,
) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var mutex sync.Mutex
	var hasEnded bool
	check(subscriber.Receive(ctx, func(_ context.Context, message *pubsub.Message) {
		mutex.Lock()
		defer mutex.Unlock()
		if hasEnded {
			message.Nack()
		} else if isDone(message) {
			hasEnded = true
			cancel()
		}
	}))
	expect(hasEnded, "not all messages came within %s", limit)
}

// receiveAll acknowledges `count` messages and returns them in the order in which they came.
func receiveAll(ctx context.Context, subscriber *pubsub.Subscriber, count int) (received []*pubsub.Message) {
	receive(ctx, subscriber, func(message *pubsub.Message) bool {
		message.Ack()
		received = append(received, message)
		return len(received) == count
	})
	return received
}
