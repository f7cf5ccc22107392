// Calls the official client as the test asks: a JSON object a line in, one a line out.
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

// From proto JSON to what protobuf.js takes.
function given(value, key) {
  if (key === "updateMask") return { paths: value.split(",").map(snake) };
  if (typeof value === "string" && /(Duration|Backoff|ttl)$/.test(key)) return { seconds: parseInt(value, 10) };
  if (typeof value === "string" && /^(time|expireTime)$/.test(key)) {
    return { seconds: Math.floor(Date.parse(value) / 1000), nanos: (Date.parse(value) % 1000) * 1e6 };
  }
  if (Array.isArray(value)) return value.map((one) => given(one, key));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, given(one, name)]));
  }
  return value;
}

// And back; what is empty or a default is left out, as proto JSON does.
function shown(value, key) {
  if (Array.isArray(value)) return value.map((one) => shown(one, key));
  if (value && typeof value === "object") {
    if (value.type === "Buffer") return Buffer.from(value.data).toString("base64");
    if ("seconds" in value && /(Duration|Backoff|ttl)$/.test(key)) return `${value.seconds}s`;
    return Object.fromEntries(Object.entries(value)
      .map(([name, one]) => [name, shown(one, name)])
      .filter(([, one]) => !(one === "" || one === null || one === undefined || one === false || one === 0 ||
        (Array.isArray(one) && one.length === 0))));
  }
  return value;
}

const actions = {
  async call({ service, method, request }) {
    const client = await clientOf(service);
    const name = method[0].toLowerCase() + method.slice(1);
    const [answer] = await client[name](given(request, ""), { autoPaginate: false, timeout: 20000 });
    const plain = JSON.parse(JSON.stringify(answer ?? {}));
    if (Array.isArray(plain)) return { items: shown(plain, "") };
    const empty = Object.fromEntries(Object.entries(plain).filter(([, one]) => !(one && typeof one === "object" &&
      !Array.isArray(one) && Object.keys(one).length === 0)));
    return shown(empty, "");
  },

  // Publish with the high-level client: batching, ordering keys.
  async publish({ topic, messages, ordering }) {
    const publisher = pubsub.topic(topic, { messageOrdering: ordering });
    const ids = messages.map((message) => publisher.publishMessage({
      data: Buffer.from(message.data), attributes: message.attributes, orderingKey: message.orderingKey }));
    return { ids: await Promise.all(ids) };
  },

  // Stream until `count` messages are acknowledged; the first `nacks` deliveries are given back.
  stream({ subscription, count, nacks, maxMessages }) {
    return new Promise((resolve, reject) => {
      const got = [];
      let left = nacks || 0;
      const reader = pubsub.subscription(subscription, { flowControl: { maxMessages: maxMessages || 1000 } });
      reader.on("error", reject);
      reader.on("message", async (message) => {
        if (left > 0) {
          left -= 1;
          message.nack();
          return;
        }
        got.push({ data: message.data.toString(), attributes: message.attributes, orderingKey: message.orderingKey,
          deliveryAttempt: message.deliveryAttempt });
        if (reader.isExactlyOnceDelivery) await message.ackWithResponse();
        else message.ack();
        if (got.length === count) {
          await reader.close();
          resolve({ received: got });
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
