'use strict';
// Follows a stream of a serving zone: pages, positions, definitions and records.

const crypto = require('node:crypto');
const fs = require('node:fs');
const { parse, open, digest, NO_DIGEST } = require('./batch');

const TRAIL_MAX = 64;
const PAGE = { limit: 65536, bytes_max: 262144 };

// The batches of a page's attachment, which must be those that its header lists.
function batchesOf(header, attachment) {
  const found = [];
  let at = 0;
  for (const [, , length] of header.batches ?? []) {
    const batch = parse(attachment, at);
    if (batch.length !== length) throw new Error('a batch of another length than listed');
    found.push(batch);
    at += length;
  }
  if (at !== attachment.length) throw new Error('bytes after the last batch');
  return found;
}

// [first, last] of everything that a page covers, in order; throws if it is not one run.
function covers(header) {
  const found = [...(header.batches ?? []), ...(header.omitted ?? []), ...(header.holes ?? [])];
  found.sort((a, b) => a[0] - b[0]);
  for (let index = 1; index < found.length; index++) {
    if (found[index][0] !== found[index - 1][1] + 1) throw new Error(`a page that skips: ${JSON.stringify(found)}`);
  }
  return found.length ? [found[0][0], found.at(-1)[1]] : null;
}

// Definitions of zones by their running digest: a chain of [digest before, bytes] back to the first.
class Definitions {
  constructor() {
    this.links = new Map([[NO_DIGEST, null]]);
    this.lists = new Map();
  }

  async fetch(peer, serving, batches) {
    const wanted = new Map();
    for (const batch of batches) {
      if (!this.links.has(batch.definitionsDigest)) wanted.set(batch.definitionsDigest, { zone: batch.zone, count: batch.definitionCount });
    }
    const partly = new Map(); // by the digest wanted: the digest reached
    while (wanted.size > 0) {
      const objects = [...wanted].slice(0, 100).map(([last, { zone }]) => {
        const held = partly.get(last) ?? [...this.links.keys()].at(-1);
        return { zone, digest: last, ...(held === NO_DIGEST ? {} : { held: [held.slice(0, 16)] }) };
      });
      const { header, attachment } = await peer.ask(serving, 'GetDefinitions', { wanted: objects, bytes_max: 65536 });
      if (header.status !== 'ok' || !header.runs?.length) throw new Error(`definitions: ${JSON.stringify(header)}`);
      let at = 0;
      for (const run of header.runs) {
        let reached = NO_DIGEST;
        if (run.after) reached = [...this.links.keys()].find((held) => held.startsWith(run.after));
        for (const length of run.lengths) {
          const bytes = Buffer.from(attachment.subarray(at, at + length));
          const next = digest(Buffer.concat([Buffer.from(reached, 'hex'), bytes]));
          this.links.set(next, { before: reached, bytes });
          reached = next;
          at += length;
        }
        partly.set(run.digest, reached);
        if (reached !== run.digest) continue;
        if (this.list(reached).length !== wanted.get(reached).count) throw new Error('another count of definitions');
        wanted.delete(reached);
      }
    }
  }

  // The definitions that lead to a digest, tag 1 first.
  list(last) {
    if (!this.lists.has(last)) {
      const found = [];
      for (let link = this.links.get(last); link; link = this.links.get(link.before)) found.unshift(JSON.parse(link.bytes));
      this.lists.set(last, found);
    }
    return this.lists.get(last);
  }
}

// Which batches of a page are proven: by their own record, or by that of a later one in their chain.
function provenOf(batches, trust) {
  const followed = new Set(); // digests that a proven batch continues
  const proven = new Set();
  for (const batch of [...batches].reverse()) {
    const isProven = followed.has(batch.digest) || trust.provesBatch(batch);
    if (!isProven) continue;
    proven.add(batch);
    if (!batch.isSlice) followed.add(batch.previous);
  }
  return proven;
}

class Reader {
  constructor(peer, serving, stream, consumer, files) {
    Object.assign(this, { peer, serving, stream, consumer });
    this.definitions = new Definitions();
    this.trail = []; // log positions, the newest last
    this.mustNameTrail = true; // after each start, reconnection and error
    this.seen = { facts: 0, pages: 0, proven: 0, holes: [], omitted: [], errors: [], afters: [] };
    this.rows = fs.createWriteStream(files.rows, { flags: 'w' });
    this.batches = fs.createWriteStream(files.batches, { flags: 'w' });
  }

  get position() {
    return this.trail.at(-1);
  }

  // One page: ask, check, write. Returns whether it had facts.
  async page(more = {}) {
    const where = this.mustNameTrail || !this.position ? { trail: this.trail } : { after: this.position };
    const fields = {
      consumer_name: this.consumer, stream: this.stream, ...PAGE, ...where,
      signers_known: this.peer.trust.names(), ...more,
    };
    const { header, attachment } = await this.peer.ask(this.serving, 'FetchFacts', fields);
    if (header.status !== 'ok') {
      this.seen.errors.push(header.error.code);
      if (this.mustNameTrail || !header.error.retryable) throw new Error(JSON.stringify(header.error));
      this.mustNameTrail = true;
      return true;
    }
    const after = { offset: 0, ...header.after };
    if (!this.mustNameTrail && (after.offset !== this.position.offset || after.life !== this.position.life)) return true;
    this.mustNameTrail = false;
    const run = covers(header);
    if (!run) return false;
    if (run[0] !== after.offset + 1) throw new Error(`a page after ${after.offset} that begins at ${run[0]}`);
    const batches = batchesOf(header, attachment);
    await this.definitions.fetch(this.peer, this.serving, batches);
    this.write(header, batches, provenOf(batches, this.peer.trust));
    this.seen.pages++;
    this.seen.afters.push(after.offset);
    this.seen.holes.push(...(header.holes ?? []));
    this.seen.omitted.push(...(header.omitted ?? []));
    for (const position of header.lives) {
      this.trail = [...this.trail.filter((held) => held.life !== position.life), position].slice(-TRAIL_MAX);
    }
    if (this.position.offset !== run[1]) throw new Error('a page that ends elsewhere than its last life');
    return true;
  }

  write(header, batches, proven) {
    batches.forEach((batch, index) => {
      const isProven = proven.has(batch);
      const defined = batch.kind === 1 ? this.definitions.list(batch.definitionsDigest) : [];
      open(batch).forEach((row, place) => {
        const { subject, predicate, unit } = defined[row.tag - 1] ?? row;
        const offset = header.batches[index][0] + place;
        const whole = { ...row, offset, subject, predicate, unit, verified: isProven };
        if (defined.length) whole.predicate ??= 'value_sampled';
        this.rows.write(`${JSON.stringify(whole)}\n`);
      });
      this.batches.write(batch.whole);
      this.seen.facts += batch.count;
      if (isProven) this.seen.proven += batch.count;
    });
  }

  // Reads until the log has no more; waits there once.
  async toEnd(waitMs) {
    while (await this.page(this.mustNameTrail ? {} : { wait_ms: waitMs })) { /* the next page */ }
    await Promise.all([this.rows, this.batches].map((file) => new Promise((done) => file.write('', done))));
    return { ...this.seen, trail: this.trail, definitions: this.definitions.links.size - 1 };
  }

  async confirm(position = this.position) {
    const { header } = await this.peer.ask(this.serving, 'ConfirmReceipt', { consumer_name: this.consumer, ...position });
    return header;
  }
}

// Puts an artifact in pieces, or gets one and compares its digest.
async function putObject(peer, serving, bytes) {
  const name = `sha256:${crypto.createHash('sha256').update(bytes).digest('hex')}`;
  let received = 0;
  for (;;) {
    const data = bytes.subarray(received, received + 45000).toString('base64');
    const { header } = await peer.ask(serving, 'PutObject', { digest: name, size: bytes.length, offset: received, data });
    if (header.status !== 'ok' || header.is_complete) return { ...header, digest: name };
    received = header.received;
  }
}

async function getObject(peer, serving, name) {
  const parts = [];
  let offset = 0;
  for (;;) {
    const { header, attachment } = await peer.ask(serving, 'GetObject', { digest: name, offset });
    if (header.status !== 'ok') return header;
    parts.push(attachment);
    offset += attachment.length;
    if (offset >= header.size) break;
  }
  const bytes = Buffer.concat(parts);
  return { size: bytes.length, isWhole: `sha256:${crypto.createHash('sha256').update(bytes).digest('hex')}` === name };
}

module.exports = { Reader, batchesOf, covers, putObject, getObject };
