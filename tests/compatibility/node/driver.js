// Calls the official client for the tests: reads a JSON object from each line of its input and prints one per line.
"use strict";

const readline = require("node:readline");
const { PubSub, v1 } = require("@google-cloud/pubsub");

const CODES = ["OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
  "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
  "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"];

const pubsub = new PubSub({ projectId: "shop" });
const clients = {};

async function clientOf(service) {
  if (!clients[service]) {
    const options = await pubsub.getClientConfig();
    clients[service] = new v1[`${service}Client`](options);
  }
  return clients[service];
}

const snake = (path) => path.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

// Convert proto JSON to the form that protobuf.js takes.
function fromProtoJson(value, key) {
  if (key === "updateMask") return { paths: value.split(",").map(snake) };
  if (typeof value === "string" && /(Duration|Backoff|ttl)$/.test(key)) return { seconds: parseInt(value, 10) };
  if (typeof value === "string" && /^(time|expireTime)$/.test(key)) {
    return { seconds: Math.floor(Date.parse(value) / 1000), nanos: (Date.parse(value) % 1000) * 1e6 };
  }
  if (Array.isArray(value)) return value.map((item) => fromProtoJson(item, key));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, fromProtoJson(item, name)]));
  }
  return value;
}

// Convert it back to proto JSON, which leaves out empty and default values.
function toProtoJson(value, key) {
  if (Array.isArray(value)) return value.map((item) => toProtoJson(item, key));
  if (value && typeof value === "object") {
    if (value.type === "Buffer") return Buffer.from(value.data).toString("base64");
    if ("seconds" in value && /(Duration|Backoff|ttl)$/.test(key)) return `${value.seconds}s`;
    return Object.fromEntries(Object.entries(value)
      .map(([name, item]) => [name, toProtoJson(item, name)])
      .filter(([, item]) => !(item === "" || item === null || item === undefined || item === false || item === 0 ||
        (Array.isArray(item) && item.length === 0))));
  }
  return value;
}

const actions = {
  async call({ service, method, request }) {
    const client = await clientOf(service);
    const name = method[0].toLowerCase() + method.slice(1);
    const [answer] = await client[name](fromProtoJson(request, ""), { autoPaginate: false, timeout: 20000 });
    const plain = JSON.parse(JSON.stringify(answer ?? {}));
    if (Array.isArray(plain)) return { items: toProtoJson(plain, "") };
    const empty = Object.fromEntries(Object.entries(plain).filter(([, item]) => !(item && typeof item === "object" &&
      !Array.isArray(item) && Object.keys(item).length === 0)));
    return toProtoJson(empty, "");
  },

  // Publish with the high-level client: batching, ordering keys.
  async publish({ topic, messages, ordering }) {
    const publisher = pubsub.topic(topic, { messageOrdering: ordering });
    const ids = messages.map((message) => publisher.publishMessage({
      data: Buffer.from(message.data), attributes: message.attributes, orderingKey: message.orderingKey }));
    return { ids: await Promise.all(ids) };
  },

  // Stream until `count` messages are acknowledged; the first `nacks` deliveries are nacked.
  stream({ subscription, count, nacks, maxMessages }) {
    return new Promise((resolve, reject) => {
      const received = [];
      let nacksLeft = nacks || 0;
      const reader = pubsub.subscription(subscription, { flowControl: { maxMessages: maxMessages || 1000 } });
      reader.on("error", reject);
      reader.on("message", async (message) => {
        if (nacksLeft > 0) {
          nacksLeft -= 1;
          message.nack();
          return;
        }
        received.push({ data: message.data.toString(), attributes: message.attributes, orderingKey: message.orderingKey,
          deliveryAttempt: message.deliveryAttempt });
        if (reader.isExactlyOnceDelivery) await message.ackWithResponse();
        else message.ack();
        if (received.length === count) {
          await reader.close();
          resolve({ received });
        }
      });
    });
  },
};

readline.createInterface({ input: process.stdin }).on("line", async (line) => {
  const { action, ...rest } = JSON.parse(line);
  let answer;
  try {
    answer = { answer: await actions[action](rest) };
  } catch (error) {
    answer = { refused: { code: CODES[error.code] ?? String(error.code), message: error.details ?? error.message } };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}).on("close", () => process.exit(0));
