'use strict';
// Sealed batches, from docs/developers/batch-format.md alone. Everything a caller gives is written as it is: nothing is
// checked, because what must be refused is written here too.

const { blake2b } = require('blakejs');

const KIND_SAMPLES = 1;
const KIND_MESSAGES = 2;
const HEADER_BYTES = 98;
const ZEROS = Buffer.alloc(16);

const digestOf = (...parts) => Buffer.from(blake2b(Buffer.concat(parts), null, 16));

function uint(bytes, value) {
    const buffer = Buffer.alloc(bytes);
    let rest = BigInt.asUintN(64, BigInt(value));
    for (let at = 0; at < bytes; at += 1, rest >>= 8n) buffer[at] = Number(rest & 255n);
    return buffer;
}

const bigEndian = (bytes, value) => uint(bytes, value).reverse();

// ------------------------------------------------------------------------------------------------ MessagePack

function lengthed(short, codes, data, count) {
    const [limit, base] = short;
    if (count < limit) return Buffer.concat([Buffer.from([base + count]), data]);
    const [code, bytes] = codes.find(([, width]) => count < 2 ** (8 * width));
    return Buffer.concat([Buffer.from([code]), bigEndian(bytes, count), data]);
}

const packText = (data) => lengthed([32, 0xa0], [[0xd9, 1], [0xda, 2], [0xdb, 4]], data, data.length);
const packBytes = (data) => lengthed([0, 0], [[0xc4, 1], [0xc5, 2], [0xc6, 4]], data, data.length);
const packArray = (entries) =>
    lengthed([16, 0x90], [[0xdc, 2], [0xdd, 4]], Buffer.concat(entries.map(pack)), entries.length);
const packExt = (type, data) =>
    Buffer.concat([Buffer.from([0xc9]), bigEndian(4, data.length), Buffer.from([type]), data]);

function packInteger(value) {
    const number = BigInt(value);
    if (number >= 0n && number < 128n) return Buffer.from([Number(number)]);
    return Buffer.concat([Buffer.from([number < 0n ? 0xd3 : 0xcf]), bigEndian(8, number)]);
}

function packDouble(value) {
    const buffer = Buffer.alloc(9, 0xcb);
    buffer.writeDoubleBE(value, 1);
    return buffer;
}

// Strings, numbers, null, arrays and Buffers (bin) as they are; {text: base64} any bytes as str, {bin: base64},
// {int: decimal text}, {double}, {json: base64} the extension type of JSON, {map: [[key, value], ...]} also with a key
// twice, {raw: base64} MessagePack as given.
function pack(value) {
    if (value === null || value === undefined) return Buffer.from([0xc0]);
    if (typeof value === 'boolean') return Buffer.from([value ? 0xc3 : 0xc2]);
    if (typeof value === 'string') return packText(Buffer.from(value, 'utf8'));
    if (typeof value === 'number' || typeof value === 'bigint') return packInteger(value);
    if (Buffer.isBuffer(value)) return packBytes(value);
    if (Array.isArray(value)) return packArray(value);
    if ('text' in value) return packText(Buffer.from(value.text, 'base64'));
    if ('bin' in value) return packBytes(Buffer.from(value.bin, 'base64'));
    if ('int' in value) return packInteger(value.int);
    if ('double' in value) return packDouble(Number(value.double));
    if ('json' in value) return packExt(1, Buffer.from(value.json, 'base64'));
    if ('raw' in value) return Buffer.from(value.raw, 'base64');
    const pairs = value.map;
    const data = Buffer.concat(pairs.flat().map(pack));
    return lengthed([16, 0x80], [[0xde, 2], [0xdf, 4]], data, pairs.length);
}

// ---------------------------------------------------------------------------------------------------- batches

const COLUMNS = [
    'message_id', 'from_zone', 'to_zone', 'produced_at_unix_ms', 'correlation_id', 'causation_id', 'labels',
    'object_media_type', 'object_schema', 'subject', 'predicate', 'object',
];

const timeOf = (message) => {
    const at = message.produced_at_unix_ms;
    return BigInt(at !== null && typeof at === 'object' ? at.int : at) * 1000000n;
};

function seal({ kind, link, count, times, definitions, content }) {
    const zone = Buffer.from(link.zone, 'ascii');
    const stream = Buffer.from(link.stream, 'ascii');
    const sorted = [...times].sort((a, b) => (a < b ? -1 : Number(a > b)));
    const header = Buffer.concat([
        Buffer.from('BSFB'), Buffer.from([1, kind, 0, 0]), Buffer.from(link.life, 'hex'), uint(8, link.sequence),
        uint(4, count), uint(8, sorted[0]), uint(8, sorted[sorted.length - 1]), link.digest,
        uint(4, definitions.count), definitions.digest, uint(4, content.length), uint(4, content.length),
        Buffer.from([zone.length, stream.length]),
    ]);
    if (header.length !== HEADER_BYTES) throw new Error(`a header of ${header.length} bytes`);
    const before = Buffer.concat([header, zone, stream, content]);
    return Buffer.concat([before, digestOf(before)]);
}

function sealMessages(link, messages) {
    const columns = COLUMNS.map((name) => messages.map((message) => {
        const value = message[name];
        if (name === 'object') return typeof value === 'string' ? Buffer.from(value, 'utf8') : value;
        if (name === 'labels') return value && 'map' in value ? value : { map: Object.entries(value || {}) };
        return value === undefined ? null : value;
    }));
    return seal({
        kind: KIND_MESSAGES, link, count: messages.length, times: messages.map(timeOf),
        definitions: { count: 0, digest: ZEROS }, content: pack(columns),
    });
}

// One sample of tag 1 with a value of the column "others": text, bytes or JSON.
function sealSample(link, sample, definitions) {
    const time = BigInt(sample.time_ns);
    const none = Buffer.alloc(0);
    const columns = [
        [1, 0, 0, none], [time, 1, 0, none], Buffer.from([3]), none, [0, 0, none], none, [sample.value], [0, 0, none],
    ];
    return seal({
        kind: KIND_SAMPLES, link, count: 1, times: [time], definitions, content: pack(columns),
    });
}

// A signed batch with one other bit in its record, and the digest that fits it.
function spoiled(sealed) {
    const signed = Buffer.from(sealed.subarray(0, -16));
    signed[signed.length - 1] ^= 1;
    return Buffer.concat([signed, digestOf(signed)]);
}

// The running digest over definitions, and how many they are.
const definitionsDigest = (texts) => ({
    count: texts.length,
    digest: texts.reduce((digest, text) => digestOf(digest, Buffer.from(text)), ZEROS),
});

module.exports = { ZEROS, definitionsDigest, digestOf, sealMessages, sealSample, spoiled };
