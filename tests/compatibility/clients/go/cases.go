package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/pubsub/v2"
	pubsubapi "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// All published messages arrive once, with their attributes.
func publishAndReceive(ctx context.Context, client *pubsub.Client) {
	topic, subscription := create(ctx, client, "publish", &pubsubpb.Subscription{})
	messages := numbered(1000)
	for _, message := range messages {
		message.Attributes = map[string]string{"number": string(message.Data)}
	}
	publish(ctx, client, topic, messages...)
	texts := map[string]bool{}
	for _, message := range receiveAll(ctx, client.Subscriber(subscription), len(messages)) {
		expect(message.Attributes["number"] == string(message.Data), "the attributes are %v", message.Attributes)
		texts[string(message.Data)] = true
	}
	expect(len(texts) == len(messages), "%d different messages came", len(texts))
}

// The messages of each ordering key arrive in the order in which they were published.
func ordered(ctx context.Context, client *pubsub.Client) {
	topic, subscription := create(ctx, client, "ordered", &pubsubpb.Subscription{EnableMessageOrdering: true})
	messages := numbered(400)
	for number, message := range messages {
		message.OrderingKey = fmt.Sprint("key ", number%4)
	}
	publish(ctx, client, topic, messages...)
	next := map[string]int{}
	for _, message := range receiveAll(ctx, client.Subscriber(subscription), len(messages)) {
		key := message.OrderingKey
		expected := fmt.Sprint(next[key]*4 + int(key[len(key)-1]-'0'))
		expect(string(message.Data) == expected, "%s came in place of %s", message.Data, expected)
		next[key]++
	}
}

// A stream brings no more messages than it asked for, and a nacked message again.
func streaming(ctx context.Context, client *pubsub.Client) {
	topic, subscription := create(ctx, client, "streaming", &pubsubpb.Subscription{})
	publish(ctx, client, topic, numbered(100)...)
	subscriber := client.Subscriber(subscription)
	subscriber.ReceiveSettings.MaxOutstandingMessages = 10
	deliveries, acked := map[string]int{}, 0
	receive(ctx, subscriber, func(message *pubsub.Message) bool {
		deliveries[message.ID]++
		if deliveries[message.ID] == 1 && strings.HasSuffix(string(message.Data), "7") {
			message.Nack()
			return false
		}
		message.Ack()
		acked++
		return acked == 100
	})
	expect(len(deliveries) == 100, "%d different messages came", len(deliveries))
}

// Acknowledgements are confirmed, and what is confirmed never comes again.
func exactlyOnce(ctx context.Context, client *pubsub.Client) {
	fields := &pubsubpb.Subscription{EnableExactlyOnceDelivery: true}
	topic, subscription := create(ctx, client, "exactly-once", fields)
	publish(ctx, client, topic, numbered(50)...)
	subscriber := client.Subscriber(subscription)
	acked := map[string]bool{}
	receive(ctx, subscriber, func(message *pubsub.Message) bool {
		confirmation, err := message.AckWithResult().Get(ctx)
		check(err)
		expect(confirmation == pubsub.AcknowledgeStatusSuccess, "an acknowledgement got %v", confirmation)
		expect(!acked[message.ID], "message %s came again", message.ID)
		acked[message.ID] = true
		return len(acked) == 50
	})
	publish(ctx, client, topic, &pubsub.Message{Data: []byte("last")})
	last := receiveAll(ctx, subscriber, 1)
	expect(string(last[0].Data) == "last", "%s came again", last[0].Data)
}

// A message that is nacked too often goes to the dead-letter topic.
func deadLetters(ctx context.Context, client *pubsub.Client) {
	deadTopic, deadSubscription := create(ctx, client, "dead", &pubsubpb.Subscription{})
	policy := &pubsubpb.DeadLetterPolicy{DeadLetterTopic: deadTopic, MaxDeliveryAttempts: 5}
	topic, subscription := create(ctx, client, "dead-letters", &pubsubpb.Subscription{DeadLetterPolicy: policy})
	publish(ctx, client, topic, &pubsub.Message{Data: []byte("hopeless")})
	var attempts []int
	receive(ctx, client.Subscriber(subscription), func(message *pubsub.Message) bool {
		attempts = append(attempts, *message.DeliveryAttempt)
		message.Nack()
		return len(attempts) == 5
	})
	expect(slices.Equal(attempts, []int{1, 2, 3, 4, 5}), "the attempts were %v", attempts)
	dead := receiveAll(ctx, client.Subscriber(deadSubscription), 1)[0]
	source := dead.Attributes["CloudPubSubDeadLetterSourceSubscription"]
	expect(string(dead.Data) == "hopeless" && source == "dead-letters", "%s came from %q", dead.Data, source)
}

// A topic with a schema refuses what doesn't match it.
func schemas(ctx context.Context, client *pubsub.Client) {
	connection, err := grpc.NewClient(
		os.Getenv("PUBSUB_EMULATOR_HOST"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	schemaClient, err := pubsubapi.NewSchemaClient(ctx, option.WithGRPCConn(connection))
	check(err)
	defer schemaClient.Close()
	schema, err := schemaClient.CreateSchema(ctx, &pubsubpb.CreateSchemaRequest{
		Parent: project, SchemaId: "order", Schema: &pubsubpb.Schema{
			Type:       pubsubpb.Schema_AVRO,
			Definition: `{"type": "record", "name": "Order", "fields": [{"name": "count", "type": "int"}]}`,
		},
	})
	check(err)
	settings := &pubsubpb.SchemaSettings{Schema: schema.Name, Encoding: pubsubpb.Encoding_JSON}
	topic := createTopic(ctx, client, &pubsubpb.Topic{Name: "schemas", SchemaSettings: settings})
	subscription := createSubscription(ctx, client, topic, &pubsubpb.Subscription{})
	publish(ctx, client, topic, &pubsub.Message{Data: []byte(`{"count": 1}`)})
	publisher := client.Publisher(topic)
	defer publisher.Stop()
	_, err = publisher.Publish(ctx, &pubsub.Message{Data: []byte(`{"count": "many"}`)}).Get(ctx)
	expect(status.Code(err) == codes.InvalidArgument, "a message without the schema's form got %v", err)
	received := receiveAll(ctx, client.Subscriber(subscription), 1)[0]
	expect(received.Attributes["googclient_schemaencoding"] == "JSON", "the attributes are %v", received.Attributes)
}

// Policies are set, read and tested, also with members that the server doesn't know.
func policies(ctx context.Context, client *pubsub.Client) {
	topic, _ := create(ctx, client, "iam", &pubsubpb.Subscription{})
	binding := &iampb.Binding{Role: "roles/pubsub.viewer", Members: []string{"group:readers@example.com"}}
	policy, err := client.TopicAdminClient.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: topic})
	check(err)
	policy.Bindings = append(policy.Bindings, binding)
	_, err = client.TopicAdminClient.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: topic, Policy: policy})
	check(err)
	policy, err = client.TopicAdminClient.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: topic})
	check(err)
	expect(slices.Equal(policy.Bindings[0].Members, binding.Members), "the policy is %v", policy)
	permissions := []string{"pubsub.topics.publish", "pubsub.topics.get"}
	tested, err := client.TopicAdminClient.TestIamPermissions(
		ctx, &iampb.TestIamPermissionsRequest{Resource: topic, Permissions: permissions})
	check(err)
	expect(len(tested.Permissions) == 2, "the permissions are %v", tested.Permissions)
}

// With tracing on, a message brings its publisher's trace to the subscriber.
func tracing(ctx context.Context, client *pubsub.Client) {
	topic, subscription := create(ctx, client, "tracing", &pubsubpb.Subscription{})
	spans := tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(trace.WithSyncer(spans))
	defer provider.Shutdown(ctx)
	otel.SetTracerProvider(provider)
	otel.SetTextMapPropagator(propagation.TraceContext{})
	traced, err := pubsub.NewClientWithConfig(ctx, "shop", &pubsub.ClientConfig{EnableOpenTelemetryTracing: true})
	check(err)
	defer traced.Close()
	publish(ctx, traced, topic, &pubsub.Message{Data: []byte("traced")})
	received := receiveAll(ctx, traced.Subscriber(subscription), 1)[0]
	parent := received.Attributes["googclient_traceparent"]
	isPublished := slices.ContainsFunc(spans.GetSpans(), func(span tracetest.SpanStub) bool {
		return strings.HasSuffix(span.Name, " create") && strings.Contains(parent, span.SpanContext.TraceID().String())
	})
	expect(isPublished, "the trace of the message is %q", parent)
}

// A client goes on after its connections were idle.
func idle(ctx context.Context, client *pubsub.Client) {
	pause, err := time.ParseDuration(os.Getenv("IDLE_SECONDS") + "s")
	check(err)
	topic, subscription := create(ctx, client, "idle", &pubsubpb.Subscription{})
	publish(ctx, client, topic, &pubsub.Message{Data: []byte("0")})
	count := 0
	receiveWithin(ctx, pause+patience, client.Subscriber(subscription), func(message *pubsub.Message) bool {
		message.Ack()
		if count++; count == 1 {
			time.Sleep(pause)
			publish(ctx, client, topic, &pubsub.Message{Data: []byte("1")})
		}
		return count == 2
	})
}

// leaseForLong makes a client hold what it got for ten minutes, so that nothing comes back because a lease lapsed.
func leaseForLong(subscriber *pubsub.Subscriber) *pubsub.Subscriber {
	subscriber.ReceiveSettings.MinDurationPerAckExtension = 10 * time.Minute
	subscriber.ReceiveSettings.MaxDurationPerAckExtension = 10 * time.Minute
	return subscriber
}

// A subscriber that stops loses nothing: the next one gets at once what the first one hadn't acknowledged.
func shutdown(ctx context.Context, client *pubsub.Client) {
	topic, subscription := create(ctx, client, "shutdown", &pubsubpb.Subscription{AckDeadlineSeconds: 600})
	publish(ctx, client, topic, numbered(100)...)
	first := receiveAll(ctx, leaseForLong(client.Subscriber(subscription)), 30)
	rest := receiveAll(ctx, leaseForLong(client.Subscriber(subscription)), 70)
	texts := map[string]bool{}
	for _, message := range append(first, rest...) {
		texts[string(message.Data)] = true
	}
	expect(len(texts) == 100, "%d different messages were acknowledged", len(texts))
}

// Subscribers that end after an error, one after the other, lose nothing, as those of a service that is restarted.
func restarts(ctx context.Context, client *pubsub.Client) {
	topic, subscription := create(ctx, client, "restarts", &pubsubpb.Subscription{AckDeadlineSeconds: 600})
	publish(ctx, client, topic, numbered(5)...)
	texts := map[string]bool{}
	for range 5 {
		hasFailed := false
		receive(ctx, leaseForLong(client.Subscriber(subscription)), func(message *pubsub.Message) bool {
			if !hasFailed {
				hasFailed = true
				message.Nack()
				return false
			}
			message.Ack()
			texts[string(message.Data)] = true
			return true
		})
	}
	expect(len(texts) == 5, "%d different messages were acknowledged", len(texts))
}
