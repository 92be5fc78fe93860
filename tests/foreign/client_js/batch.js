'use strict';
// The batch format, version 1, written from docs/developers/batch-format.md alone.

const { blake2b } = require('blakejs');
const fzstd = require('fzstd');
const { isCanonical } = require('./canonical');

class Refused extends Error {}

const HEADER_BYTES = 98;
const RECORD_BYTES = 82;
const DIGEST_BYTES = 16;
const LIMITS = { facts: 16384, batch: 524288, content: 2097152, value: 65536, object: 262144, sequence: 2n ** 63n - 2n };
const NO_DIGEST = '0'.repeat(32);

const digest = (bytes) => Buffer.from(blake2b(bytes, null, DIGEST_BYTES)).toString('hex');

function must(condition, why) {
  if (!condition) throw new Refused(why);
}

// --- the bytes around the content ---------------------------------------------------------------------------------

// Reads the batch that starts at `at`; checks all that can be checked without opening its content.
function parse(bytes, at = 0) {
  const rest = bytes.subarray(at);
  must(rest.length >= HEADER_BYTES, 'shorter than a header');
  must(rest.subarray(0, 4).toString('latin1') === 'BSFB', 'not a batch');
  must(rest[4] === 1, `version ${rest[4]}, and this reader knows 1`);
  const contentBytes = rest.readUInt32LE(88);
  const bodyBytes = rest.readUInt32LE(92);
  const zoneBytes = rest[96];
  const streamBytes = rest[97];
  const isSigned = (rest[7] & 2) !== 0;
  const bodyAt = HEADER_BYTES + zoneBytes + streamBytes;
  const recordAt = bodyAt + bodyBytes;
  const digestAt = recordAt + (isSigned ? RECORD_BYTES : 0);
  const length = digestAt + DIGEST_BYTES;
  must(length <= LIMITS.batch && length <= rest.length, 'cut, or longer than a batch may be');
  const whole = rest.subarray(0, length);
  const found = {
    kind: rest[5],
    codec: rest[6],
    isSlice: (rest[7] & 1) !== 0,
    isSigned,
    life: rest.subarray(8, 24).toString('hex'),
    firstSequence: rest.readBigUInt64LE(24),
    count: rest.readUInt32LE(32),
    earliest: rest.readBigInt64LE(36),
    latest: rest.readBigInt64LE(44),
    previous: rest.subarray(52, 68).toString('hex'),
    definitionCount: rest.readUInt32LE(68),
    definitionsDigest: rest.subarray(72, 88).toString('hex'),
    contentBytes,
    zone: rest.subarray(98, 98 + zoneBytes).toString('latin1'),
    stream: rest.subarray(98 + zoneBytes, bodyAt).toString('latin1'),
    body: rest.subarray(bodyAt, recordAt),
    digest: whole.subarray(digestAt).toString('hex'),
    whole,
    length,
  };
  must(found.digest === digest(whole.subarray(0, digestAt)), 'wrong digest');
  must(found.kind === 1 || found.kind === 2, 'unknown kind');
  must(found.codec <= 1, 'unknown codec');
  must(rest[7] <= 2, 'unknown flag, or a slice with a record');
  must(/^[a-z0-9-]{1,32}$/.test(found.zone) && /^[a-z0-9._-]{1,64}$/.test(found.stream), 'zone or stream');
  must(found.count >= 1 && found.count <= LIMITS.facts, 'count');
  found.lastSequence = found.firstSequence + BigInt(found.count) - 1n;
  must(found.firstSequence >= 1n && found.lastSequence <= LIMITS.sequence, 'sequences');
  must(found.earliest <= found.latest, 'earliest after latest');
  const startsChain = found.firstSequence === 1n && !found.isSlice;
  must((found.previous === NO_DIGEST) === startsChain, 'previous digest');
  must((found.definitionCount === 0) === (found.definitionsDigest === NO_DIGEST), 'definitions');
  must((found.definitionCount === 0) === (found.kind === 2), 'definitions of this kind');
  must(contentBytes <= LIMITS.content && (found.codec === 1 || contentBytes === bodyBytes), 'content bytes');
  if (isSigned) found.record = readRecord(found, whole.subarray(recordAt, digestAt), whole.subarray(0, recordAt));
  return found;
}

function readRecord(batch, record, before) {
  const text = (value) => Buffer.concat([Buffer.from([value.length]), Buffer.from(value, 'latin1')]);
  const last = Buffer.alloc(8);
  last.writeBigUInt64LE(batch.lastSequence);
  const signedAt = record.readBigInt64LE(10);
  return {
    isKnown: record[0] === 1 && record[1] === 0 && signedAt >= 0n && signedAt < 2n ** 43n,
    keyId: record.subarray(2, 10).toString('hex'),
    signedAt,
    signature: record.subarray(18),
    covered: Buffer.concat([
      Buffer.from('bsfg/record/1\0', 'latin1'),
      record.subarray(0, 10),
      text(batch.zone),
      text(batch.stream),
      Buffer.from(batch.life, 'hex'),
      last,
      Buffer.from(digest(before), 'hex'),
      record.subarray(10, 18),
    ]),
  };
}

// --- zstd -----------------------------------------------------------------------------------------------------------

// One whole frame that states its size, before anything is decompressed.
function checkFrame(body, contentBytes) {
  must(body.length >= 5 && body.readUInt32LE(0) === 0xfd2fb528, 'not a zstd frame');
  const descriptor = body[4];
  const isSingle = (descriptor & 0x20) !== 0;
  const sizeBytes = [isSingle ? 1 : 0, 2, 4, 8][descriptor >> 6];
  must(sizeBytes > 0, 'a frame without its size');
  let at = 5 + (isSingle ? 0 : 1) + [0, 1, 2, 4][descriptor & 3];
  must(at + sizeBytes <= body.length, 'a cut frame');
  let size = 0;
  for (let index = sizeBytes - 1; index >= 0; index--) size = size * 256 + body[at + index];
  must(size + (sizeBytes === 2 ? 256 : 0) === contentBytes, 'a frame of another size');
  at += sizeBytes;
  for (let isLast = false; !isLast; ) {
    must(at + 3 <= body.length, 'a cut frame');
    const block = body.readUIntLE(at, 3);
    isLast = (block & 1) !== 0;
    at += 3 + (((block >> 1) & 3) === 1 ? 1 : block >> 3); // type 1 repeats one byte
  }
  must(at + (descriptor & 4 ? 4 : 0) === body.length, 'bytes after the frame, or a cut one');
}

function contentOf(batch) {
  if (batch.codec === 0) return batch.body;
  checkFrame(batch.body, batch.contentBytes);
  let content;
  try {
    content = Buffer.from(fzstd.decompress(batch.body, new Uint8Array(batch.contentBytes)));
  } catch (error) {
    throw new Refused(`zstd: ${error.message}`);
  }
  must(content.length === batch.contentBytes, 'content of another size');
  return content;
}

// --- MessagePack: each read names the type that belongs there ------------------------------------------------------

class Content {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  take(length) {
    must(this.at + length <= this.bytes.length, 'cut content');
    this.at += length;
    return this.bytes.subarray(this.at - length, this.at);
  }

  peek() {
    must(this.at < this.bytes.length, 'cut content');
    return this.bytes[this.at];
  }

  // The length after a type byte, of 1, 2 or 4 bytes.
  length(bytes) {
    return this.take(bytes).readUIntBE(0, bytes);
  }

  // A type of the forms first, first + 1, ... with lengths of these bytes; -1 if it is another type.
  sized(first, sizes, fixed, fixedMask) {
    const type = this.peek();
    if (fixed !== undefined && (type & ~fixedMask & 0xff) === fixed) {
      this.at++;
      return type & fixedMask;
    }
    if (type < first || type >= first + sizes.length) return -1;
    this.at++;
    return this.length(sizes[type - first]);
  }

  array(count) {
    const found = this.sized(0xdc, [2, 4], 0x90, 0x0f);
    must(count === undefined ? found >= 0 && found <= LIMITS.facts : found === count, 'an array of another length');
    return found;
  }

  isInt() {
    const type = this.peek();
    return type <= 0x7f || type >= 0xe0 || (type >= 0xcc && type <= 0xd3);
  }

  int() {
    must(this.isInt(), 'not an integer');
    const type = this.take(1)[0];
    if (type <= 0x7f) return BigInt(type);
    if (type >= 0xe0) return BigInt(type - 256);
    const bytes = this.take(2 ** (type & 3));
    let value = 0n;
    for (const byte of bytes) value = value * 256n + BigInt(byte);
    return type <= 0xcf ? value : BigInt.asIntN(bytes.length * 8, value);
  }

  bin(limit) {
    const length = this.sized(0xc4, [1, 2, 4]);
    must(length >= 0 && length <= limit, 'not bytes, or too many');
    return this.take(length);
  }

  isText() {
    const type = this.peek();
    return (type & 0xe0) === 0xa0 || (type >= 0xd9 && type <= 0xdb);
  }

  text(limit, least = 0) {
    const length = this.sized(0xd9, [1, 2, 4], 0xa0, 0x1f);
    must(length >= least && length <= limit, 'not a text, or of a wrong length');
    try {
      return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(this.take(length));
    } catch {
      throw new Refused('text that is not UTF-8');
    }
  }

  // Extension: its type and bytes.
  ext(limit) {
    const type = this.take(1)[0];
    must((type >= 0xd4 && type <= 0xd8) || (type >= 0xc7 && type <= 0xc9), 'an entry of a wrong type');
    const length = type >= 0xd4 ? 2 ** (type - 0xd4) : this.length(2 ** (type - 0xc7));
    must(length <= limit, 'a value that is too long');
    return [this.take(1)[0], this.take(length)];
  }

  isNil() {
    if (this.peek() !== 0xc0) return false;
    this.at++;
    return true;
  }
}

// --- columns --------------------------------------------------------------------------------------------------------

const WIDTHS = [0n, 1n, 2n, 4n, 8n];

// Unsigned integers from their planes.
function planes(bytes, count, width) {
  must(WIDTHS.includes(width), 'a width that is not listed');
  must(bytes.length === count * Number(width), 'planes of another length');
  const found = new Array(count);
  for (let index = 0; index < count; index++) {
    let value = 0n;
    for (let plane = Number(width) - 1; plane >= 0; plane--) value = (value << 8n) | BigInt(bytes[plane * count + index]);
    found[index] = value;
  }
  return found;
}

// A column that is whole or collapsed, as a function of the fact's place in it.
function spread(entries, count) {
  must(entries.length === count || (entries.length === 1 && count > 0), 'a column neither whole nor collapsed');
  return (index) => entries[entries.length === 1 ? 0 : index];
}

function tagsOf(content, batch) {
  content.array(4);
  const [first, step, width] = [content.int(), content.int(), content.int()];
  const steps = planes(content.bin(LIMITS.content), batch.count - 1, width);
  must(width === 0n || step === 0n, 'a step beside steps');
  const tags = [first];
  for (const value of steps) tags.push(tags.at(-1) + (width === 0n ? step : BigInt.asIntN(Number(width) * 8, value)));
  for (const tag of tags) must(tag >= 1n && tag <= BigInt(batch.definitionCount), 'a tag that is not defined');
  return tags;
}

function timesOf(content, batch) {
  content.array(4);
  const [earliest, unit, width] = [content.int(), content.int(), content.int()];
  must(unit >= 1n, 'a unit below 1');
  must(earliest === batch.earliest, 'an earliest time other than that of the header');
  return planes(content.bin(LIMITS.content), batch.count, width).map((value) => earliest + unit * value);
}

// The integers `least` + planes, within bounds.
function offsetsOf(content, count, lowest, highest) {
  content.array(3);
  const [least, width] = [content.int(), content.int()];
  const found = planes(content.bin(LIMITS.content), count, width).map((value) => least + value);
  for (const value of found) must(value >= lowest && value <= highest, 'an integer out of its range');
  return found;
}

function otherOf(content) {
  if (content.isNil()) return { value_type: 'none' };
  if (content.isText()) return { value_type: 'string', value: content.text(LIMITS.value) };
  if (content.isInt()) {
    const value = content.int();
    must(value >= 2n ** 63n, 'a small integer among the others');
    return { value_type: 'uint', value: value.toString() };
  }
  const [type, bytes] = content.ext(LIMITS.value);
  if (type === 2) return { value_type: 'bytes', value: bytes.toString('base64') };
  must(type === 1, 'an unknown extension');
  must(isCanonical(bytes), 'JSON that is not canonical');
  return { value_type: 'json', value: bytes.toString() };
}

function floatAt(bytes, index) {
  const bits = bytes.readBigUInt64LE(8 * (bytes.length === 8 ? 0 : index));
  return { value_type: 'double', value: bits.toString(16).padStart(16, '0') };
}

function openSamples(content, batch) {
  content.array(8);
  const tags = tagsOf(content, batch);
  const times = timesOf(content, batch);
  const kindAt = spread(content.bin(LIMITS.facts), batch.count);
  const kinds = tags.map((_, index) => kindAt(index));
  const counts = [0, 0, 0, 0];
  for (const kind of kinds) {
    must(kind <= 3, 'a kind over 3');
    counts[kind]++;
  }
  const floats = content.bin(8 * LIMITS.facts);
  must(floats.length === 8 * counts[0] || (floats.length === 8 && counts[0] > 0), 'floats');
  const ints = offsetsOf(content, counts[1], -(2n ** 63n), 2n ** 63n - 1n);
  const boolAt = spread(content.bin(LIMITS.facts), counts[2]);
  const others = [];
  for (let left = content.array(); left > 0; left--) others.push(otherOf(content));
  const otherAt = spread(others, counts[3]);
  const qualities = offsetsOf(content, batch.count, 0n, 2n ** 32n - 1n);
  const placed = [0, 0, 0, 0];
  const valueOf = [
    (index) => floatAt(floats, index),
    (index) => ({ value_type: 'int', value: ints[index].toString() }),
    (index) => {
      must(boolAt(index) <= 1, 'a bool over 1');
      return { value_type: 'bool', value: boolAt(index) === 1 };
    },
    otherAt,
  ];
  return kinds.map((kind, index) => ({
    kind: 'sample',
    tag: Number(tags[index]),
    time: times[index],
    quality: Number(qualities[index]),
    ...valueOf[kind](placed[kind]++),
  }));
}

// Reads a column of messages: an array whose entries `entry` reads.
function column(content, count, entry) {
  const found = [];
  for (let left = content.array(); left > 0; left--) found.push(entry());
  return spread(found, count);
}

function openMessages(content, batch) {
  const text = (limit = 256) => () => content.text(limit, 1);
  const optional = () => (content.isNil() ? undefined : content.text(256, 1));
  const labels = () => {
    const count = content.sized(0xde, [2, 4], 0x80, 0x0f);
    must(count >= 0 && count <= 32, 'labels');
    const found = new Map();
    for (let left = count; left > 0; left--) found.set(content.text(256, 1), content.text(256, 1));
    return Object.fromEntries(found);
  };
  const object = () => {
    const bytes = content.bin(LIMITS.object);
    must(isCanonical(bytes), 'JSON that is not canonical');
    return bytes.toString();
  };
  const columns = [
    ['message_id', text()],
    ['from_zone', text(32)],
    ['to_zone', text()],
    ['produced_at_unix_ms', () => content.int()],
    ['correlation_id', optional],
    ['causation_id', optional],
    ['labels', labels],
    ['object_media_type', optional],
    ['object_schema', optional],
    ['subject', text(512)],
    ['predicate', text(512)],
    ['object_json', object],
  ];
  content.array(columns.length);
  const rows = Array.from({ length: batch.count }, () => ({ kind: 'message' }));
  for (const [name, entry] of columns) {
    const at = column(content, batch.count, entry);
    rows.forEach((row, index) => {
      row[name] = at(index);
    });
  }
  for (const row of rows) {
    must(row.produced_at_unix_ms >= 0n && row.produced_at_unix_ms < 2n ** 43n, 'a time of production');
    must(/^[a-z0-9-]{1,32}$/.test(row.from_zone), 'a zone');
    must(/^[a-z][a-z0-9_]*:[\x21-\x2e\x30-\x7e]+(?:\/[\x21-\x7e]+)?$/.test(row.subject), 'a subject');
    must(/^[a-z][a-z0-9]*(?:_[a-z0-9]+)*$/.test(row.predicate), 'a predicate');
    row.time = row.produced_at_unix_ms * 1000000n;
    delete row.produced_at_unix_ms;
  }
  return rows;
}

// The facts of a parsed batch. Doubles are 16 hex digits, integers decimal texts.
function open(batch) {
  const content = new Content(contentOf(batch));
  const rows = batch.kind === 1 ? openSamples(content, batch) : openMessages(content, batch);
  must(content.at === content.bytes.length, 'bytes after the content');
  let [earliest, latest] = [rows[0].time, rows[0].time];
  for (const { time } of rows) {
    if (time < earliest) earliest = time;
    if (time > latest) latest = time;
  }
  must(earliest === batch.earliest && latest === batch.latest, 'times other than those of the header');
  return rows.map(({ time, ...row }, index) => ({
    stream: batch.stream,
    zone: batch.zone,
    life: batch.life,
    sequence: Number(batch.firstSequence) + index,
    source_time_ns: time.toString(),
    ...row,
  }));
}

module.exports = { parse, open, digest, Refused, NO_DIGEST };

// As a program: the facts of a file of batches as JSON lines, or why one must be refused.
if (require.main === module) {
  const bytes = require('node:fs').readFileSync(process.argv[2]);
  try {
    for (let at = 0, batch; at < bytes.length; at += batch.length) {
      batch = parse(bytes, at);
      for (const row of open(batch)) console.log(JSON.stringify(row));
    }
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    console.error(`refused: ${error.message}`);
    process.exitCode = 25;
  }
}
