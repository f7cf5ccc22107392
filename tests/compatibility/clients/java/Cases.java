import com.google.api.core.ApiFuture;
import com.google.api.core.ApiFutures;
import com.google.api.gax.batching.FlowControlSettings;
import com.google.api.gax.core.CredentialsProvider;
import com.google.api.gax.core.NoCredentialsProvider;
import com.google.api.gax.grpc.GrpcTransportChannel;
import com.google.api.gax.rpc.FixedTransportChannelProvider;
import com.google.api.gax.rpc.InvalidArgumentException;
import com.google.api.gax.rpc.TransportChannelProvider;
import com.google.cloud.pubsub.v1.AckReplyConsumer;
import com.google.cloud.pubsub.v1.AckReplyConsumerWithResponse;
import com.google.cloud.pubsub.v1.AckResponse;
import com.google.cloud.pubsub.v1.MessageReceiver;
import com.google.cloud.pubsub.v1.MessageReceiverWithAckResponse;
import com.google.cloud.pubsub.v1.Publisher;
import com.google.cloud.pubsub.v1.SchemaServiceClient;
import com.google.cloud.pubsub.v1.SchemaServiceSettings;
import com.google.cloud.pubsub.v1.Subscriber;
import com.google.cloud.pubsub.v1.SubscriptionAdminClient;
import com.google.cloud.pubsub.v1.SubscriptionAdminSettings;
import com.google.cloud.pubsub.v1.TopicAdminClient;
import com.google.cloud.pubsub.v1.TopicAdminSettings;
import com.google.gson.JsonObject;
import com.google.iam.v1.Binding;
import com.google.iam.v1.GetIamPolicyRequest;
import com.google.iam.v1.Policy;
import com.google.iam.v1.SetIamPolicyRequest;
import com.google.iam.v1.TestIamPermissionsRequest;
import com.google.protobuf.ByteString;
import com.google.pubsub.v1.DeadLetterPolicy;
import com.google.pubsub.v1.Encoding;
import com.google.pubsub.v1.ProjectName;
import com.google.pubsub.v1.PubsubMessage;
import com.google.pubsub.v1.Schema;
import com.google.pubsub.v1.SchemaSettings;
import com.google.pubsub.v1.Subscription;
import com.google.pubsub.v1.Topic;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.propagation.ContextPropagators;
import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.common.CompletableResultCode;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.data.SpanData;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import io.opentelemetry.sdk.trace.export.SpanExporter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;

/**
 * Runs cases of Google's Java client against PUBSUB_EMULATOR_HOST: reads the name of a case from each line of its input
 * and prints its result as a line of JSON.
 */
public class Cases {
  private static final String PROJECT = "projects/shop";

  /** How long a case may wait for its messages. */
  private static final long PATIENCE_SECONDS = 60;

  private interface Case {
    void run() throws Exception;
  }

  private final ManagedChannel connection =
      ManagedChannelBuilder.forTarget(System.getenv("PUBSUB_EMULATOR_HOST")).usePlaintext().build();
  private final TransportChannelProvider channel =
      FixedTransportChannelProvider.create(GrpcTransportChannel.create(connection));
  private final CredentialsProvider credentials = NoCredentialsProvider.create();
  private final TopicAdminClient topics =
      TopicAdminClient.create(
          TopicAdminSettings.newBuilder()
              .setTransportChannelProvider(channel)
              .setCredentialsProvider(credentials)
              .build());
  private final SubscriptionAdminClient subscriptions =
      SubscriptionAdminClient.create(
          SubscriptionAdminSettings.newBuilder()
              .setTransportChannelProvider(channel)
              .setCredentialsProvider(credentials)
              .build());
  private final Map<String, Case> cases =
      Map.of(
          "publish", this::publishAndReceive,
          "ordered", this::ordered,
          "streaming", this::streaming,
          "exactly-once", this::exactlyOnce,
          "dead-letters", this::deadLetters,
          "schemas", this::schemas,
          "iam", this::policies,
          "tracing", this::tracing,
          "idle", this::idle,
          "shutdown", this::shutdown);

  private Cases() throws Exception {}

  public static void main(String[] arguments) throws Exception {
    Cases client = new Cases();
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String name = lines.readLine(); name != null; name = lines.readLine()) {
      JsonObject result = new JsonObject();
      result.addProperty("case", name);
      result.addProperty("error", client.run(name));
      System.out.println(result);
    }
    client.topics.close();
    client.subscriptions.close();
    client.connection.shutdownNow();
    System.exit(0); // The client's threads would keep the program for another minute.
  }

  /** Returns why a case failed; nothing if it didn't. */
  private String run(String name) {
    try {
      cases.get(name).run();
      return "";
    } catch (Exception | AssertionError failure) {
      return failure.toString();
    }
  }

  private static void expect(boolean isTrue, String format, Object... values) {
    if (!isTrue) {
      throw new AssertionError(String.format(format, values));
    }
  }

  private String createTopic(String name, UnaryOperator<Topic.Builder> fields) {
    Topic.Builder topic = Topic.newBuilder().setName(PROJECT + "/topics/" + name);
    return topics.createTopic(fields.apply(topic).build()).getName();
  }

  private String createSubscription(String topic, UnaryOperator<Subscription.Builder> fields) {
    String name = topic.replace("/topics/", "/subscriptions/");
    Subscription.Builder subscription = Subscription.newBuilder().setName(name).setTopic(topic);
    return subscriptions.createSubscription(fields.apply(subscription).build()).getName();
  }

  private Publisher.Builder publisher(String topic) {
    return Publisher.newBuilder(topic).setChannelProvider(channel).setCredentialsProvider(credentials);
  }

  private static List<PubsubMessage> numbered(int count) {
    List<PubsubMessage> messages = new ArrayList<>();
    for (int number = 0; number < count; number++) {
      messages.add(message(Integer.toString(number)));
    }
    return messages;
  }

  private static PubsubMessage message(String text) {
    return PubsubMessage.newBuilder().setData(ByteString.copyFromUtf8(text)).build();
  }

  private static String text(PubsubMessage message) {
    return message.getData().toStringUtf8();
  }

  private void publish(String topic, List<PubsubMessage> messages) throws Exception {
    publish(publisher(topic).setEnableMessageOrdering(!messages.get(0).getOrderingKey().isEmpty()), messages);
  }

  /** Publishes messages and returns when the server has them all. */
  private static void publish(Publisher.Builder builder, List<PubsubMessage> messages) throws Exception {
    Publisher publisher = builder.build();
    try {
      List<ApiFuture<String>> ids = new ArrayList<>();
      messages.forEach(message -> ids.add(publisher.publish(message)));
      publisher.publishAllOutstanding();
      Set<String> distinct = new HashSet<>(ApiFutures.allAsList(ids).get(PATIENCE_SECONDS, TimeUnit.SECONDS));
      expect(distinct.size() == messages.size(), "%d ids for %d messages", distinct.size(), messages.size());
    } finally {
      publisher.shutdown();
      publisher.awaitTermination(PATIENCE_SECONDS, TimeUnit.SECONDS);
    }
  }

  /** A message that came, and how to settle it. */
  private record Received(PubsubMessage message, AckReplyConsumer reply) {}

  /** A running subscriber whose messages wait in a queue; what is left in it at the end is nacked. */
  private final class Stream implements AutoCloseable {
    private final BlockingQueue<Received> queue = new LinkedBlockingQueue<>();
    private final Subscriber subscriber;
    private volatile boolean isClosing;

    Stream(String subscription, UnaryOperator<Subscriber.Builder> options) {
      MessageReceiver receiver = this::take;
      Subscriber.Builder builder = Subscriber.newBuilder(subscription, receiver);
      builder.setChannelProvider(channel).setCredentialsProvider(credentials);
      subscriber = options.apply(builder).build();
      subscriber.startAsync().awaitRunning();
    }

    private void take(PubsubMessage message, AckReplyConsumer reply) {
      queue.add(new Received(message, reply));
      if (isClosing) {
        nackWaiting();
      }
    }

    private void nackWaiting() {
      for (Received waiting = queue.poll(); waiting != null; waiting = queue.poll()) {
        waiting.reply().nack();
      }
    }

    Received next() throws InterruptedException {
      Received received = queue.poll(PATIENCE_SECONDS, TimeUnit.SECONDS);
      expect(received != null, "no message came within %d s", PATIENCE_SECONDS);
      return received;
    }

    PubsubMessage acknowledgeNext() throws InterruptedException {
      Received received = next();
      received.reply().ack();
      return received.message();
    }

    @Override
    public void close() throws Exception {
      isClosing = true;
      nackWaiting();
      subscriber.stopAsync().awaitTerminated(PATIENCE_SECONDS, TimeUnit.SECONDS);
    }
  }

  /** Acknowledges `count` messages; returns them in the order in which they came. */
  private List<PubsubMessage> receiveAll(String subscription, int count, UnaryOperator<Subscriber.Builder> options)
      throws Exception {
    List<PubsubMessage> messages = new ArrayList<>();
    try (Stream stream = new Stream(subscription, options)) {
      while (messages.size() < count) {
        messages.add(stream.acknowledgeNext());
      }
    }
    return messages;
  }

  private static Set<String> texts(List<PubsubMessage> messages) {
    Set<String> texts = new HashSet<>();
    messages.forEach(message -> texts.add(text(message)));
    return texts;
  }

  /** All published messages arrive once, with their attributes. */
  private void publishAndReceive() throws Exception {
    String topic = createTopic("publish", fields -> fields);
    String subscription = createSubscription(topic, fields -> fields);
    List<PubsubMessage> messages = new ArrayList<>();
    for (PubsubMessage message : numbered(1000)) {
      messages.add(message.toBuilder().putAttributes("number", text(message)).build());
    }
    publish(topic, messages);
    List<PubsubMessage> received = receiveAll(subscription, messages.size(), options -> options);
    for (PubsubMessage message : received) {
      expect(text(message).equals(message.getAttributesOrThrow("number")), "the message is %s", message);
    }
    expect(texts(received).size() == messages.size(), "%d different messages came", texts(received).size());
  }

  /** The messages of each ordering key arrive in the order in which they were published. */
  private void ordered() throws Exception {
    String topic = createTopic("ordered", fields -> fields);
    String subscription = createSubscription(topic, fields -> fields.setEnableMessageOrdering(true));
    List<PubsubMessage> messages = new ArrayList<>();
    for (PubsubMessage message : numbered(400)) {
      messages.add(message.toBuilder().setOrderingKey("key " + messages.size() % 4).build());
    }
    publish(topic, messages);
    Map<String, Integer> next = new HashMap<>(Map.of("key 0", 0, "key 1", 1, "key 2", 2, "key 3", 3));
    for (PubsubMessage message : receiveAll(subscription, messages.size(), options -> options)) {
      int expected = next.merge(message.getOrderingKey(), 4, Integer::sum) - 4;
      expect(Integer.parseInt(text(message)) == expected, "%s came in place of %d", text(message), expected);
    }
  }

  /** A stream brings no more messages than it asked for, and a nacked message again. */
  private void streaming() throws Exception {
    String topic = createTopic("streaming", fields -> fields);
    String subscription = createSubscription(topic, fields -> fields);
    publish(topic, numbered(100));
    FlowControlSettings limits = FlowControlSettings.newBuilder().setMaxOutstandingElementCount(10L).build();
    Set<String> nacked = new HashSet<>();
    Set<String> acked = new HashSet<>();
    try (Stream stream = new Stream(subscription, options -> options.setFlowControlSettings(limits))) {
      while (acked.size() < 100) {
        Received received = stream.next();
        expect(stream.queue.size() < 10, "%d messages wait", stream.queue.size());
        String text = text(received.message());
        if (text.endsWith("7") && nacked.add(text)) {
          received.reply().nack();
        } else {
          received.reply().ack();
          acked.add(text);
        }
      }
    }
    expect(nacked.size() == 10, "%d messages were nacked", nacked.size());
  }

  /** Acknowledgements are confirmed, and what is confirmed never comes again. */
  private void exactlyOnce() throws Exception {
    String topic = createTopic("exactly-once", fields -> fields);
    String subscription = createSubscription(topic, fields -> fields.setEnableExactlyOnceDelivery(true));
    publish(topic, numbered(50));
    BlockingQueue<String> received = new LinkedBlockingQueue<>();
    BlockingQueue<AckResponse> confirmations = new LinkedBlockingQueue<>();
    MessageReceiverWithAckResponse receiver =
        (PubsubMessage message, AckReplyConsumerWithResponse reply) -> {
          received.add(text(message));
          try {
            confirmations.add(reply.ack().get());
          } catch (InterruptedException | ExecutionException error) {
            confirmations.add(AckResponse.OTHER);
          }
        };
    Subscriber.Builder builder = Subscriber.newBuilder(subscription, receiver);
    Subscriber subscriber = builder.setChannelProvider(channel).setCredentialsProvider(credentials).build();
    subscriber.startAsync().awaitRunning();
    try {
      for (int count = 0; count < 50; count++) {
        AckResponse confirmation = confirmations.poll(PATIENCE_SECONDS, TimeUnit.SECONDS);
        expect(confirmation == AckResponse.SUCCESSFUL, "an acknowledgement got %s", confirmation);
      }
      publish(topic, List.of(message("last")));
      expect(confirmations.poll(PATIENCE_SECONDS, TimeUnit.SECONDS) == AckResponse.SUCCESSFUL, "the last one");
    } finally {
      subscriber.stopAsync().awaitTerminated(PATIENCE_SECONDS, TimeUnit.SECONDS);
    }
    expect(received.size() == 51, "%d messages came", received.size());
    expect(new HashSet<>(received).size() == 51, "a message came again");
  }

  /** A message that is nacked too often goes to the dead-letter topic. */
  private void deadLetters() throws Exception {
    String deadTopic = createTopic("dead", fields -> fields);
    String deadSubscription = createSubscription(deadTopic, fields -> fields);
    DeadLetterPolicy policy =
        DeadLetterPolicy.newBuilder().setDeadLetterTopic(deadTopic).setMaxDeliveryAttempts(5).build();
    String topic = createTopic("dead-letters", fields -> fields);
    String subscription = createSubscription(topic, fields -> fields.setDeadLetterPolicy(policy));
    publish(topic, List.of(message("hopeless")));
    try (Stream stream = new Stream(subscription, options -> options)) {
      for (int attempt = 1; attempt <= 5; attempt++) {
        Received received = stream.next();
        Integer shown = Subscriber.getDeliveryAttempt(received.message());
        expect(shown == attempt, "attempt %d is called %d", attempt, shown);
        received.reply().nack();
      }
    }
    PubsubMessage dead = receiveAll(deadSubscription, 1, options -> options).get(0);
    String source = dead.getAttributesOrThrow("CloudPubSubDeadLetterSourceSubscription");
    expect(text(dead).equals("hopeless") && source.equals("dead-letters"), "%s came from %s", text(dead), source);
  }

  /** A topic with a schema refuses what doesn't match it. */
  private void schemas() throws Exception {
    String definition =
        "{\"type\": \"record\", \"name\": \"Order\", \"fields\": [{\"name\": \"count\", \"type\": \"int\"}]}";
    SchemaServiceSettings.Builder settings = SchemaServiceSettings.newBuilder();
    settings.setTransportChannelProvider(channel).setCredentialsProvider(credentials);
    Schema schema = Schema.newBuilder().setType(Schema.Type.AVRO).setDefinition(definition).build();
    try (SchemaServiceClient client = SchemaServiceClient.create(settings.build())) {
      schema = client.createSchema(ProjectName.of("shop"), schema, "order");
    }
    SchemaSettings schemaSettings =
        SchemaSettings.newBuilder().setSchema(schema.getName()).setEncoding(Encoding.JSON).build();
    String topic = createTopic("schemas", fields -> fields.setSchemaSettings(schemaSettings));
    String subscription = createSubscription(topic, fields -> fields);
    publish(topic, List.of(message("{\"count\": 1}")));
    try {
      publish(topic, List.of(message("{\"count\": \"many\"}")));
      throw new AssertionError("a message without the schema's form was taken");
    } catch (ExecutionException error) {
      expect(error.getCause() instanceof InvalidArgumentException, "the error is %s", error.getCause());
    }
    PubsubMessage received = receiveAll(subscription, 1, options -> options).get(0);
    String encoding = received.getAttributesOrThrow("googclient_schemaencoding");
    expect(encoding.equals("JSON"), "the encoding is %s", encoding);
  }

  /** Policies are set, read and tested, also with members that the server doesn't know. */
  private void policies() {
    String topic = createTopic("iam", fields -> fields);
    Binding binding =
        Binding.newBuilder().setRole("roles/pubsub.viewer").addMembers("group:readers@example.com").build();
    Policy policy = Policy.newBuilder().addBindings(binding).build();
    topics.setIamPolicy(SetIamPolicyRequest.newBuilder().setResource(topic).setPolicy(policy).build());
    policy = topics.getIamPolicy(GetIamPolicyRequest.newBuilder().setResource(topic).build());
    expect(policy.getBindings(0).equals(binding), "the policy is %s", policy);
    List<String> permissions = List.of("pubsub.topics.publish", "pubsub.topics.get");
    TestIamPermissionsRequest request =
        TestIamPermissionsRequest.newBuilder().setResource(topic).addAllPermissions(permissions).build();
    List<String> tested = topics.testIamPermissions(request).getPermissionsList();
    expect(tested.equals(permissions), "the permissions are %s", tested);
  }

  /** Keeps the spans that have ended. */
  private static final class KeptSpans implements SpanExporter {
    private final Collection<SpanData> spans = new ConcurrentLinkedQueue<>();

    @Override
    public CompletableResultCode export(Collection<SpanData> ended) {
      spans.addAll(ended);
      return CompletableResultCode.ofSuccess();
    }

    @Override
    public CompletableResultCode flush() {
      return CompletableResultCode.ofSuccess();
    }

    @Override
    public CompletableResultCode shutdown() {
      return CompletableResultCode.ofSuccess();
    }
  }

  /** With tracing on, a message brings its publisher's trace to the subscriber. */
  private void tracing() throws Exception {
    String topic = createTopic("tracing", fields -> fields);
    String subscription = createSubscription(topic, fields -> fields);
    KeptSpans kept = new KeptSpans();
    OpenTelemetrySdk telemetry =
        OpenTelemetrySdk.builder()
            .setTracerProvider(
                SdkTracerProvider.builder().addSpanProcessor(SimpleSpanProcessor.create(kept)).build())
            .setPropagators(ContextPropagators.create(W3CTraceContextPropagator.getInstance()))
            .build();
    publish(
        publisher(topic).setOpenTelemetry(telemetry).setEnableOpenTelemetryTracing(true),
        List.of(message("traced")));
    PubsubMessage received =
        receiveAll(
                subscription,
                1,
                options -> options.setOpenTelemetry(telemetry).setEnableOpenTelemetryTracing(true))
            .get(0);
    String parent = received.getAttributesOrThrow("googclient_traceparent").split("-")[1];
    boolean isPublished =
        kept.spans.stream().anyMatch(span -> span.getName().endsWith(" create") && span.getTraceId().equals(parent));
    expect(isPublished, "the trace of the message is %s", parent);
    telemetry.close();
  }

  /** A client goes on after its connections were idle. */
  private void idle() throws Exception {
    String topic = createTopic("idle", fields -> fields);
    String subscription = createSubscription(topic, fields -> fields);
    try (Stream stream = new Stream(subscription, options -> options)) {
      publish(topic, List.of(message("0")));
      expect(text(stream.acknowledgeNext()).equals("0"), "another message came");
      Thread.sleep(Duration.ofSeconds(Long.parseLong(System.getenv("IDLE_SECONDS"))).toMillis());
      publish(topic, List.of(message("1")));
      expect(text(stream.acknowledgeNext()).equals("1"), "another message came");
    }
  }

  /** A subscriber that stops loses nothing: the next one gets at once what the first one hadn't acknowledged. */
  private void shutdown() throws Exception {
    String topic = createTopic("shutdown", fields -> fields);
    String subscription = createSubscription(topic, fields -> fields.setAckDeadlineSeconds(600));
    publish(topic, numbered(100));
    // The client holds what it got for ten minutes, so that nothing comes back because a lease lapsed.
    Duration lease = Duration.ofMinutes(10);
    UnaryOperator<Subscriber.Builder> longLeases =
        options -> options.setMinDurationPerAckExtensionDuration(lease);
    Set<String> texts = texts(receiveAll(subscription, 30, longLeases));
    texts.addAll(texts(receiveAll(subscription, 70, longLeases)));
    expect(texts.size() == 100, "%d different messages were acknowledged", texts.size());
  }
}
