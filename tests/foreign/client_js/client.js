'use strict';
// A client of the replication protocol as a process: its options in one argument, then one command, a JSON object, a
// line, each answered by one line.

const readline = require('node:readline');
const { Peer, NoAnswer } = require('./peer');
const { Reader, batchesOf, covers, putObject, getObject } = require('./reader');
const { open } = require('./batch');

const options = JSON.parse(process.argv[2]);
const peer = new Peer(options);
const readers = new Map();

const commands = {
  // Any request. Returns the header of the answer, and the facts and ranges of a page.
  async ask({ serving, operation, fields, limit_ms: limitMs, spoil }) {
    try {
      const answer = await peer.ask(serving, operation, fields, { limitMs, spoil });
      const found = { header: answer.header, is_proven: answer.isProven };
      if (answer.header.batches) {
        const batches = batchesOf(answer.header, answer.attachment);
        found.covers = covers(answer.header);
        found.slices = batches.filter((batch) => batch.isSlice).length;
        found.proven = batches.filter((batch) => peer.trust.provesBatch(batch)).length;
        found.rows = batches.flatMap(open);
      }
      return found;
    } catch (error) {
      if (error instanceof NoAnswer) return { header: {} };
      throw error;
    }
  },
  follow({ name, serving, stream, consumer, rows, batches }) {
    readers.set(name, new Reader(peer, serving, stream, consumer, { rows, batches }));
    return {};
  },
  // Reads on to the end; `fresh` as after a new connection.
  async read({ name, fresh, wait_ms: waitMs = 0 }) {
    const reader = readers.get(name);
    reader.mustNameTrail ||= fresh === true;
    return reader.toEnd(waitMs);
  },
  confirm: ({ name, position }) => readers.get(name).confirm(position),
  put: ({ serving, data }) => putObject(peer, serving, Buffer.from(data, 'base64')),
  get: ({ serving, digest }) => getObject(peer, serving, digest),
  seen: () => ({ ignored: peer.ignored }),
};

async function answer(line) {
  try {
    const { do: name, ...fields } = JSON.parse(line);
    return { ok: await commands[name](fields) };
  } catch (error) {
    return { error: error.stack };
  }
}

async function main() {
  await peer.connect();
  process.stdout.write(`${JSON.stringify({ ready: { instance: peer.instance } })}\n`);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    process.stdout.write(`${JSON.stringify(await answer(line))}\n`);
  }
  await peer.close();
}

main();
