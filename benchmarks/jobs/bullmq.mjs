// BullMQ's queue and worker: `bullmq.mjs fill EVENTS TYPES` puts jobs on its queue, `bullmq.mjs work` has a worker ready
// and lets it begin at SIGUSR2. The modules are found through STORM_MODULES, since they lie in no folder above this one.

import { createRequire } from 'node:module';

const require = createRequire(`${process.env.STORM_MODULES}/`);
const { Queue, Worker } = require('bullmq');
const Redis = require('ioredis');

const CONCURRENCY = 100;
const CHUNK = 1000;

const connect = () => new Redis({ path: process.env.STORM_SOCKET, maxRetriesPerRequest: null });

async function fill(events, types) {
  const queue = new Queue('storm', { connection: connect() });
  for (let begin = 0; begin < events; begin += CHUNK) {
    const jobs = [];
    for (let n = begin; n < Math.min(events, begin + CHUNK); n += 1) {
      const category = `type.${String(n % types).padStart(2, '0')}`;
      jobs.push({ name: 'decide', data: { category, text: `disk ${n} of 100,000 is nearly full on db1`, count: n } });
    }
    await queue.addBulk(jobs);
  }
  process.exit(0);
}

async function work() {
  const asked = connect();
  asked.defineCommand('recipe', { numberOfKeys: 2, lua: process.env.STORM_RECIPE });
  const limits = process.env.STORM_LIMITS.split(' ');
  const decide = ({ data }) => asked.recipe('recipe:global', `recipe:${data.category}`, ...limits, data.count);
  const worker = new Worker('storm', decide, { connection: connect(), concurrency: CONCURRENCY, autorun: false });
  worker.on('error', (error) => { console.error(error); process.exit(1); });
  await worker.waitUntilReady();
  await asked.ping();
  process.once('SIGUSR2', () => worker.run());
  setInterval(() => {}, 1 << 30); // nothing else keeps the process while it waits
  console.log('ready');
}

const [what, events, types] = process.argv.slice(2);
await (what === 'fill' ? fill(Number(events), Number(types)) : work());
