'use strict';
// One zone at the broker, from docs/developers/protocol.md alone: asks other zones, and serves a log of its own.

const crypto = require('crypto');
const fs = require('fs');
const mqtt = require('mqtt');
const { ZEROS, definitionsDigest, sealMessages, sealSample, spoiled } = require('./batch.js');

const CONNECT_MS = 10000;
const EXPIRY_S = 30;
const HEARTBEAT_MS = 5000;
const COMMON = { protocol: 'bsfg.replication', version: '1.0' };

// A log that a peer serves: batches end to end, each continuing the chain of its origin unless told otherwise.
class Log {
    constructor() {
        this.batches = [];
        this.end = 0;
        this.chains = new Map();
        this.waiting = new Set();
        this.signers = [];
        this.defined = new Map(); // texts of definitions, by their digest
    }

    // Add the batches of a page of another log as they are, but for the records of the first `spoil`. Returns the last
    // offset there.
    relay({ header, attachment }, spoil) {
        let at = 0;
        header.batches.forEach(([first, last, length], place) => {
            let sealed = attachment.subarray(at, at + length);
            if (place < spoil) sealed = spoiled(sealed);
            this.batches.push({ first: this.end + 1, last: this.end + 1 + last - first, sealed });
            this.end += 1 + last - first;
            at += length;
        });
        this.signers = [...new Set([...this.signers, ...(header.signers || [])])];
        this.waiting.forEach((wake) => wake());
        return header.batches.length ? header.batches[header.batches.length - 1][1] : 0;
    }

    // A batch of messages or of one sample; `forged` replaces fields of the chain. Returns its offsets.
    append(stream, { zone, life, messages, sample, definitions, forged }) {
        const origin = `${zone}/${life}`;
        const chain = this.chains.get(origin) || { sequence: 1, digest: ZEROS };
        const link = { stream, zone, life, ...chain };
        if (forged && forged.sequence) link.sequence = forged.sequence;
        if (forged && forged.digest) link.digest = Buffer.from(forged.digest, 'hex');
        let sealed;
        if (sample) {
            const named = definitionsDigest(definitions || []);
            this.defined.set(named.digest.toString('hex'), definitions || []);
            sealed = sealSample(link, sample, named);
        } else {
            sealed = sealMessages(link, messages);
        }
        const count = sample ? 1 : messages.length;
        this.chains.set(origin, { sequence: Number(link.sequence) + count, digest: sealed.subarray(-16) });
        this.batches.push({ first: this.end + 1, last: this.end + count, sealed });
        this.end += count;
        this.waiting.forEach((wake) => wake());
        return { first_offset: this.end - count + 1, last_offset: this.end, digest: sealed.subarray(-16).toString('hex') };
    }

    page(after, bytesMax) {
        const found = [];
        let bytes = 0;
        for (const one of this.batches) {
            if (one.first <= after) continue;
            if (found.length && bytes + one.sealed.length > bytesMax) break;
            found.push(one);
            bytes += one.sealed.length;
        }
        return found;
    }

    grown(limitMs) {
        return new Promise((resolve) => {
            const wake = () => {
                clearTimeout(timer);
                this.waiting.delete(wake);
                resolve();
            };
            const timer = setTimeout(wake, limitMs);
            this.waiting.add(wake);
        });
    }
}

class Peer {
    constructor(options, zone, port) {
        const own = options.zones[zone];
        this.zone = zone;
        this.target = { host: options.host, port: port || own.port || options.port };
        this.files = { ca: fs.readFileSync(own.ca), cert: fs.readFileSync(own.cert), key: fs.readFileSync(own.key) };
        this.instance = crypto.randomBytes(8).toString('hex');
        this.open = new Map();
        this.logs = new Map();
        this.patches = [];
        this.requests = [];
        this.askers = new Set();
        this.frontiers = new Map();
        this.closed = null;
        this.life = crypto.randomBytes(16).toString('hex');
    }

    async connect() {
        this.client = mqtt.connect({
            ...this.target, ...this.files, protocol: 'mqtts', protocolVersion: 5, clean: true, reconnectPeriod: 0,
            connectTimeout: CONNECT_MS, clientId: crypto.randomBytes(16).toString('hex'), minVersion: 'TLSv1.3',
            properties: { sessionExpiryInterval: 0 },
        });
        await new Promise((resolve, reject) => {
            this.client.once('connect', resolve);
            this.client.once('error', reject);
            this.client.once('close', () => reject(new Error('the broker closed the connection')));
        });
        this.client.on('error', (error) => { this.closed = this.closed || String(error); });
        this.client.on('close', () => { this.closed = this.closed || 'closed by the broker'; });
        this.client.stream.setNoDelay(true);
        this.client.on('message', (topic, payload, packet) => this.arrived(topic, payload, packet));
        return this;
    }

    end() {
        this.client.end(true);
    }

    // ------------------------------------------------------------------------------------------------------ asking

    async listen(serving) {
        await this.client.subscribeAsync(`bsfg/1/+/${this.zone}/rsp/0/+`, { qos: 0 });
    }

    // Send a request as it is given; the answer, or null after `limitMs`. `limitMs` 0: do not wait for one.
    ask(serving, payload, limitMs, more) {
        const correlation = crypto.randomBytes(16);
        const properties = {
            responseTopic: `bsfg/1/${serving}/${this.zone}/rsp/0/${this.instance}`, correlationData: correlation,
            messageExpiryInterval: EXPIRY_S, ...(more || {}),
        };
        const key = correlation.toString('hex');
        const answered = new Promise((resolve) => {
            if (!limitMs) { resolve(null); return; }
            const timer = setTimeout(() => { this.open.delete(key); resolve(null); }, limitMs);
            this.open.set(key, (answer) => { clearTimeout(timer); resolve(answer); });
        });
        this.client.publish(`bsfg/1/${serving}/${this.zone}/req`, payload, { qos: limitMs ? 1 : 0, properties });
        return answered;
    }

    arrived(topic, payload, packet) {
        const properties = packet.properties || {};
        const parts = topic.split('/');
        if (parts[4] === 'req') {
            if (this.askers.has(parts[3])) this.requested(parts[3], payload, properties);
            return;
        }
        const key = Buffer.from(properties.correlationData || []).toString('hex');
        const resolve = this.open.get(key);
        if (!resolve) return;
        this.open.delete(key);
        const [answer, signedBy] = unsigned(payload, [parts[2], parts[3], parts[6], properties.correlationData]);
        const length = answer.readUInt32LE(0);
        const text = answer.subarray(4, 4 + length).toString('utf8');
        resolve({ header: JSON.parse(text), text, attachment: answer.subarray(4 + length), signedBy });
    }

    // ----------------------------------------------------------------------------------------------------- serving

    async serve(asking) {
        this.askers.add(asking);
        await this.client.subscribeAsync(`bsfg/1/${this.zone}/+/req`, { qos: 1 });
    }

    begin() {
        const before = [...this.logs.values()];
        this.life = crypto.randomBytes(16).toString('hex');
        this.logs.clear();
        this.frontiers.clear();
        this.patches = [];
        before.forEach((log) => log.waiting.forEach((wake) => wake()));
    }

    log(stream) {
        if (!this.logs.has(stream)) this.logs.set(stream, new Log());
        return this.logs.get(stream);
    }

    async requested(asking, payload, properties) {
        const request = JSON.parse(payload.toString('utf8'));
        this.requests.push({ asking, ...request });
        if (this.requests.length > 1000) this.requests.shift();
        const waiting = Buffer.from(JSON.stringify({ waiting: [properties.correlationData.toString('hex')] }));
        const unnamed = { ...properties, correlationData: Buffer.alloc(0) };
        const heartbeats = setInterval(() => this.publish(unnamed, waiting), HEARTBEAT_MS).unref();
        const [header, attachment] = await this.answer(request).finally(() => clearInterval(heartbeats));
        const patch = this.patches.find((one) => one.operation === request.operation && one.times !== 0);
        let data = attachment;
        if (patch) {
            patch.times -= 1;
            Object.assign(header, patch.header || {});
            if (patch.attachment !== undefined) data = Buffer.from(patch.attachment, 'base64');
            if (patch.payload !== undefined) { this.publish(properties, Buffer.from(patch.payload, 'base64')); return; }
        }
        const text = Buffer.from(JSON.stringify(header));
        const length = Buffer.alloc(4);
        length.writeUInt32LE(text.length);
        this.publish(properties, Buffer.concat([length, text, data]));
    }

    publish(properties, payload) {
        if (this.closed) return;
        this.client.publish(properties.responseTopic, payload, {
            qos: 0, properties: { correlationData: properties.correlationData, messageExpiryInterval: EXPIRY_S },
        });
    }

    async answer(request) {
        const header = { ...COMMON, operation: request.operation, status: 'ok', store_zone: this.zone, life: this.life };
        const nothing = Buffer.alloc(0);
        const log = this.log(request.stream || '');
        switch (request.operation) {
        case 'FetchFacts': return this.fetched(request, header);
        case 'ConfirmReceipt':
            this.frontiers.set(request.consumer_name, request.offset);
            return [{ ...header, cursor_advanced_to: request.offset }, nothing];
        case 'GetCursor': {
            const frontier = this.frontiers.get(request.consumer_name) || 0;
            return [{ ...header, consumer_name: request.consumer_name, stream: '', frontier, end_offset: 0 }, nothing];
        }
        case 'ListStreams': return [{ ...header, streams: [], unix_ms: Date.now() }, nothing];
        case 'GetDigests': return [{ ...header, stream: request.stream, end_offset: log.end, ranges: [] }, nothing];
        case 'GetDefinitions': return this.defined(request, header);
        case 'GetObject': return [refusal(header, 'unknown_artifact'), nothing];
        default: return [refusal(header, 'unknown_operation'), nothing];
        }
    }

    defined(request, header) {
        const bodies = [];
        const runs = request.wanted.flatMap(({ zone, digest }) => {
            const texts = [...this.logs.values()].map((log) => log.defined.get(digest)).find((found) => found);
            const mine = (texts || []).map((text) => Buffer.from(text));
            bodies.push(...mine);
            return texts ? [{ zone, digest, lengths: mine.map((body) => body.length) }] : [];
        });
        return [{ ...header, runs }, Buffer.concat(bodies)];
    }

    async fetched(request, header) {
        const log = this.log(request.stream);
        if (request.confirm) this.frontiers.set(request.consumer_name, request.confirm.last_offset);
        const frontier = this.frontiers.get(request.consumer_name) || 0;
        const named = request.trail ? request.trail.find((one) => one.life === this.life) || { offset: 0 } : request.after;
        if (named && named.offset && named.life !== this.life) return [refusal(header, 'life_unknown', true), Buffer.alloc(0)];
        const after = named ? Math.min(named.offset || 0, request.trail ? log.end : Infinity) : frontier;
        if (log.end <= after && request.wait_ms) await log.grown(request.wait_ms);
        const page = log.page(after, request.bytes_max || 262144);
        const last = page.length ? page[page.length - 1].last : after;
        return [{
            ...header, stream: request.stream, frontier, end_offset: log.end, more: last < log.end,
            batches: page.map((one) => [one.first, one.last, one.sealed.length]),
            signers: log.signers,
            after: after ? { offset: after, life: named ? named.life : this.life } : {},
            lives: page.length ? [{ offset: last, life: this.life }] : [],
            ...(request.lease === undefined || request.lease === null ? {} : { lease: Math.max(1, request.lease) }),
        }, Buffer.concat(page.map((one) => one.sealed))];
    }
}

// An answer without its proof, and the zone that has signed it: null where it has none, '' where the signature is wrong.
// `place`: both zones, the instance, the correlation.
function unsigned(payload, place) {
    if (payload.length < 6 || payload.readUInt32LE(0) !== 0xffffffff) return [payload, null];
    const end = 6 + payload.readUInt16LE(4);
    const [signature, answer] = [payload.subarray(end, end + 64), payload.subarray(end + 64)];
    const certificate = new crypto.X509Certificate(payload.subarray(6, end));
    const digest = crypto.createHash('sha256');
    for (const part of withoutBodies(answer)) digest.update(part);
    const covered = place.flatMap((one) => [Buffer.from([one.length]), Buffer.from(one)]);
    const data = Buffer.concat([Buffer.from('bsfg/answer/1\0'), ...covered, digest.digest()]);
    const isGood = crypto.verify(null, data, certificate.publicKey, signature);
    return [answer, isGood ? certificate.subject.replace(/^CN=/, '') : ''];
}

// What a signature covers of an answer: the batches by their last 16 bytes.
function withoutBodies(answer) {
    let end = 4 + answer.readUInt32LE(0);
    const parts = [answer.subarray(0, end)];
    for (const [, , length] of JSON.parse(answer.subarray(4, end).toString('utf8')).batches || []) {
        end += length;
        parts.push(answer.subarray(end - 16, end));
    }
    return [...parts, answer.subarray(end)];
}

const refusal = (header, code, retryable = false) => ({
    ...header, status: 'error', error: { code, message: code, retryable, hint: '' },
});

module.exports = { COMMON, Peer };
