// BullMQ with undici: a job for each push. programs/lines.py says what the variables are and what publishing does.
import { createInterface } from 'node:readline';
import { Queue, Worker } from 'bullmq';
import IORedis from 'ioredis';
import { Pool } from 'undici';

const { PEER_URL, PEER_REDIS, PEER_CONCURRENCY, PEER_BODY, PEER_AUTHORIZATION } = process.env;
const headers = { 'Content-Type': 'application/json', Authorization: PEER_AUTHORIZATION };
const connection = new IORedis({ path: PEER_REDIS, maxRetriesPerRequest: null });

function start() {
  const url = new URL(PEER_URL);
  const pool = new Pool(url.origin, { connections: Number(PEER_CONCURRENCY), headersTimeout: 10_000 });
  const push = async ({ data: body }) => {
    const answer = await pool.request({ path: url.pathname, method: 'POST', headers, body });
    await answer.body.dump();
    if (answer.statusCode >= 300) throw new Error(`answered ${answer.statusCode}`);
  };
  const worker = new Worker('push', push, { connection, concurrency: Number(PEER_CONCURRENCY) });
  process.once('SIGTERM', () => worker.close().then(() => process.exit()));
}

function publish() {
  const queue = new Queue('push', { connection });
  const opts = { attempts: 1_000, backoff: { type: 'exponential', delay: 100 }, removeOnComplete: true };
  createInterface({ input: process.stdin }).on('line', async (line) => {
    const [first, count] = line.split(' ').map(Number);
    const job = (number) => ({ name: 'push', data: PEER_BODY.replace('@', number), opts });
    if (count === 1) await queue.add('push', job(first).data, opts);
    else await queue.addBulk(Array.from({ length: count }, (_, number) => job(first + number)));
    process.stdout.write(`${first}\n`);
  }).on('close', () => process.exit());
}

({ start, publish })[process.argv[2]]();
