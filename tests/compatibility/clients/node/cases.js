// Runs cases of Google's Node client against PUBSUB_EMULATOR_HOST: reads the name of a case from each line of its input
// and prints its result as a line of JSON.
"use strict";

const assert = require("node:assert/strict");
const readline = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");
const { Duration, PubSub, SchemaTypes } = require("@google-cloud/pubsub");

const PROJECT = "shop";
// How long a case may wait for its messages.
const PATIENCE_SECONDS = 60;
// A client with these options holds what it got for ten minutes, so that nothing comes back because a lease lapsed.
const LONG_LEASES = { minAckDeadline: Duration.from({ minutes: 10 }), maxAckDeadline: Duration.from({ minutes: 10 }) };

const pubsub = new PubSub({ projectId: PROJECT });

// Create a topic and a subscription to it.
async function create(name, { topicFields = {}, ...fields } = {}) {
  const [topic] = await pubsub.createTopic({ name: pubsub.topic(name).name, ...topicFields });
  const [subscription] = await topic.createSubscription(name, fields);
  return [topic, subscription];
}

const numbers = (count) => Array.from({ length: count }, (_, number) => String(number));

// Publish messages and return when the server has them all.
async function publish(topic, texts, fields = {}) {
  const ids = await Promise.all(texts.map((text) => topic.publishMessage({ data: Buffer.from(text), ...fields })));
  assert.equal(new Set(ids).size, texts.length);
}

// Hand messages to a function, one at a time, until it returns true; later messages are nacked.
async function receive(subscription, isDone, options = {}, client = pubsub) {
  const reader = client.subscription(subscription.name, options);
  let hasEnded = false;
  let turn = Promise.resolve();
  await new Promise((resolve, reject) => {
    const timer = setTimeout(reject, PATIENCE_SECONDS * 1000, new Error(`not all came within ${PATIENCE_SECONDS} s`));
    reader.on("error", reject);
    reader.on("message", (message) => {
      turn = turn.then(async () => {
        if (hasEnded) message.nack();
        else if (await isDone(message)) {
          hasEnded = true;
          clearTimeout(timer);
          resolve();
        }
      }).catch(reject);
    });
  }).finally(() => reader.close());
}

// Acknowledge `count` messages; return them in the order in which they came.
async function receiveAll(subscription, count, options = {}, client = pubsub) {
  const received = [];
  await receive(subscription, (message) => {
    message.ack();
    received.push(message);
    return received.length === count;
  }, options, client);
  return received;
}

const cases = {
  // All published messages arrive once, with their attributes.
  async publish() {
    const [topic, subscription] = await create("publish");
    await Promise.all(numbers(1000).map((number) =>
      topic.publishMessage({ data: Buffer.from(number), attributes: { number } })));
    const messages = await receiveAll(subscription, 1000);
    for (const message of messages) assert.equal(message.attributes.number, message.data.toString());
    assert.equal(new Set(messages.map((message) => message.data.toString())).size, 1000);
  },

  // The messages of each ordering key arrive in the order in which they were published.
  async ordered() {
    const [{ name }, subscription] = await create("ordered", { enableMessageOrdering: true });
    const topic = pubsub.topic(name, { messageOrdering: true });
    await Promise.all(numbers(400).map((number) =>
      topic.publishMessage({ data: Buffer.from(number), orderingKey: `key ${number % 4}` })));
    const next = [0, 1, 2, 3];
    for (const message of await receiveAll(subscription, 400)) {
      const number = Number(message.data);
      assert.equal(number, next[number % 4]);
      next[number % 4] += 4;
    }
  },

  // A stream brings no more messages than it asked for, and a nacked message again.
  async streaming() {
    const [topic, subscription] = await create("streaming");
    await publish(topic, numbers(100));
    const nacked = new Set();
    const acked = new Set();
    await receive(subscription, (message) => {
      if (!nacked.has(message.id) && message.data.toString().endsWith("7")) {
        nacked.add(message.id);
        message.nack();
        return false;
      }
      message.ack();
      acked.add(message.id);
      return acked.size === 100;
    }, { flowControl: { maxMessages: 10 } });
    assert.equal(nacked.size, 10);
  },

  // Acknowledgements are confirmed, and what is confirmed never comes again.
  async "exactly-once"() {
    const [topic, subscription] = await create("exactly-once", { enableExactlyOnceDelivery: true });
    await publish(topic, numbers(50));
    const acked = new Set();
    await receive(subscription, async (message) => {
      assert.ok(!acked.has(message.id), `message ${message.id} came again`);
      acked.add(message.id);
      assert.equal(await message.ackWithResponse(), "SUCCESS");
      return acked.size === 50;
    });
    await publish(topic, ["last"]);
    const [last] = await receiveAll(subscription, 1);
    assert.equal(last.data.toString(), "last");
  },

  // A message that is nacked too often goes to the dead-letter topic.
  async "dead-letters"() {
    const [deadTopic, deadSubscription] = await create("dead");
    const deadLetterPolicy = { deadLetterTopic: deadTopic.name, maxDeliveryAttempts: 5 };
    const [topic, subscription] = await create("dead-letters", { deadLetterPolicy });
    await publish(topic, ["hopeless"]);
    const attempts = [];
    await receive(subscription, (message) => {
      attempts.push(message.deliveryAttempt);
      message.nack();
      return attempts.length === 5;
    });
    assert.deepEqual(attempts, [1, 2, 3, 4, 5]);
    const [dead] = await receiveAll(deadSubscription, 1);
    assert.equal(dead.data.toString(), "hopeless");
    assert.equal(dead.attributes.CloudPubSubDeadLetterSourceSubscription, "dead-letters");
  },

  // A topic with a schema refuses what doesn't match it.
  async schemas() {
    const definition = '{"type": "record", "name": "Order", "fields": [{"name": "count", "type": "int"}]}';
    const schema = await pubsub.createSchema("order", SchemaTypes.Avro, definition);
    const topicFields = { schemaSettings: { schema: await schema.getName(), encoding: "JSON" } };
    const [topic, subscription] = await create("schemas", { topicFields });
    await publish(topic, ['{"count": 1}']);
    await assert.rejects(publish(topic, ['{"count": "many"}']), /INVALID_ARGUMENT/);
    const [received] = await receiveAll(subscription, 1);
    assert.equal(received.attributes.googclient_schemaencoding, "JSON");
  },

  // Policies are set, read and tested, also with members that the server doesn't know.
  async iam() {
    const [topic] = await create("iam");
    const members = ["group:readers@example.com"];
    await topic.iam.setPolicy({ bindings: [{ role: "roles/pubsub.viewer", members }] });
    const [policy] = await topic.iam.getPolicy();
    assert.deepEqual(policy.bindings[0].members, members);
    const [permissions] = await topic.iam.testPermissions(["pubsub.topics.publish", "pubsub.topics.get"]);
    assert.deepEqual(permissions, { "pubsub.topics.publish": true, "pubsub.topics.get": true });
  },

  // With tracing on, a message brings its publisher's trace to the subscriber.
  async tracing() {
    const { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } =
      require("@opentelemetry/sdk-trace-base");
    const spans = new InMemorySpanExporter();
    new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] }).register();
    const [{ name }, subscription] = await create("tracing");
    const traced = new PubSub({ projectId: PROJECT, enableOpenTelemetryTracing: true });
    await publish(traced.topic(name), ["traced"]);
    const [received] = await receiveAll(subscription, 1, {}, traced);
    await traced.close();
    const [, parent] = received.attributes.googclient_traceparent.split("-");
    const created = spans.getFinishedSpans().filter((span) => span.name.endsWith(" create"));
    assert.ok(created.some((span) => span.spanContext().traceId === parent), `the trace of the message is ${parent}`);
  },

  // A client goes on after its connections were idle.
  async idle() {
    const [topic, subscription] = await create("idle");
    await publish(topic, ["0"]);
    const texts = [];
    await receive(subscription, async (message) => {
      message.ack();
      texts.push(message.data.toString());
      if (texts.length === 1) {
        await sleep(Number(process.env.IDLE_SECONDS) * 1000);
        await publish(topic, ["1"]);
      }
      return texts.length === 2;
    });
    assert.deepEqual(texts, ["0", "1"]);
  },

  // A subscriber that stops loses nothing: the next one gets at once what the first one hadn't acknowledged.
  async shutdown() {
    const [topic, subscription] = await create("shutdown", { ackDeadlineSeconds: 600 });
    await publish(topic, numbers(100));
    const first = await receiveAll(subscription, 30, LONG_LEASES);
    const rest = await receiveAll(subscription, 70, LONG_LEASES);
    assert.equal(new Set([...first, ...rest].map((message) => message.data.toString())).size, 100);
  },
};

async function main() {
  for await (const name of readline.createInterface({ input: process.stdin })) {
    let error = "";
    try {
      await cases[name]();
    } catch (failure) {
      error = String(failure?.stack ?? failure);
    }
    process.stdout.write(`${JSON.stringify({ case: name, error })}\n`);
  }
  await pubsub.close();
}

main();
