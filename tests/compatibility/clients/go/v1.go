package main

import (
	"context"
	"fmt"
	"sync"

	v1 "cloud.google.com/go/pubsub"
	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"golang.org/x/sync/errgroup"
)

// keyLog has what two subscribers were handed of each ordering key.
type keyLog struct {
	mutex sync.Mutex
	// The subscriber whose callback runs for a key.
	running map[string]int
	next    map[string]int
	count   int
	failure string
}

func (log *keyLog) begin(subscriber int, message *v1.Message) {
	log.mutex.Lock()
	defer log.mutex.Unlock()
	key, expected := message.OrderingKey, fmt.Sprint(log.next[message.OrderingKey])
	if other, isRunning := log.running[key]; isRunning && log.failure == "" {
		log.failure = fmt.Sprintf("subscriber %d got %s of %s beside subscriber %d", subscriber, message.Data, key, other)
	}
	if string(message.Data) != expected && log.failure == "" {
		log.failure = fmt.Sprintf("%s came in place of %s of %s", message.Data, expected, key)
	}
	log.running[key] = subscriber
	log.next[key]++
	log.count++
}

func (log *keyLog) end(message *v1.Message) {
	log.mutex.Lock()
	defer log.mutex.Unlock()
	delete(log.running, message.OrderingKey)
}

func (log *keyLog) isDone(total int) bool {
	log.mutex.Lock()
	defer log.mutex.Unlock()
	return log.count >= total || log.failure != ""
}

// Two subscribers of version 1 at its defaults, with ten streams each, share the keys. All messages of a key come in
// order, and never two at once.
func orderedStreams(ctx context.Context, client *pubsub.Client) {
	const keys, perKey = 7, 300
	topic, _ := create(ctx, client, "ordered-streams", &pubsubpb.Subscription{EnableMessageOrdering: true})
	messages := numbered(keys * perKey)
	for number, message := range messages {
		message.Data = fmt.Append(nil, number/keys)
		message.OrderingKey = fmt.Sprint("key ", number%keys)
	}
	publish(ctx, client, topic, messages...)
	log := keyLog{running: map[string]int{}, next: map[string]int{}}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var subscribers errgroup.Group
	for number := range 2 {
		former, err := v1.NewClient(ctx, "shop")
		check(err)
		defer former.Close()
		subscribers.Go(func() error {
			return former.Subscription("ordered-streams").Receive(ctx, func(_ context.Context, message *v1.Message) {
				log.begin(number, message)
				if log.isDone(len(messages)) {
					cancel()
				}
				log.end(message)
				message.Ack()
			})
		})
	}
	check(subscribers.Wait())
	expect(log.failure == "", "%s", log.failure)
	expect(log.count == len(messages), "%d of %d messages came", log.count, len(messages))
}
