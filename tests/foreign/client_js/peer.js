'use strict';
// Requests and answers over MQTT 5, with their proofs, written from docs/developers/protocol.md alone.

const crypto = require('node:crypto');
const fs = require('node:fs');
const mqtt = require('mqtt');

const RETRY_MS = 3000;
const SILENT_MS = 8000; // a fetch that no heartbeat has named for so long was lost
const CHANGES = ['FetchFacts', 'ConfirmReceipt', 'UnregisterConsumer', 'AppendFact', 'AcquireLease', 'PutObject'];
const sha256 = (bytes) => crypto.createHash('sha256').update(bytes).digest();

class NoAnswer extends Error {}

// The last 32 bytes of an Ed25519 key in DER are the raw key.
const rawKey = (certificate) => certificate.publicKey.export({ type: 'spki', format: 'der' }).subarray(-32);
const keyId = (certificate) => sha256(rawKey(certificate)).subarray(0, 8).toString('hex');

// Signing certificates that are trusted, by zone.
class Trust {
  constructor(files) {
    this.signers = new Map();
    for (const [zone, paths] of Object.entries(files)) {
      this.signers.set(zone, paths.map((path) => new crypto.X509Certificate(fs.readFileSync(path))));
    }
  }

  names() {
    return [...this.signers].flatMap(([zone, signers]) => signers.map((signer) => `${zone}/${keyId(signer)}`));
  }

  proves(zone, covered, signature) {
    return (this.signers.get(zone) ?? []).some((signer) => crypto.verify(null, covered, signer.publicKey, signature));
  }

  // Whether the record of a batch proves it: a trusted key of its zone, in its time.
  provesBatch(batch) {
    if (!batch.record?.isKnown) return false;
    const at = Number(batch.record.signedAt);
    const { covered, signature, keyId: hint } = batch.record;
    return (this.signers.get(batch.zone) ?? []).some(
      (signer) =>
        keyId(signer) === hint &&
        Date.parse(signer.validFrom) <= at &&
        at <= Date.parse(signer.validTo) &&
        crypto.verify(null, covered, signer.publicKey, signature),
    );
  }
}

class Peer {
  // options: host, port, zone, ca, cert, key; signer {cert, key}; trust {zone: [files]}
  constructor(options) {
    this.options = options;
    this.zone = options.zone;
    this.instance = crypto.randomBytes(8).toString('hex');
    this.slot = options.slot ?? '0';
    this.trust = new Trust(options.trust ?? {});
    this.waiting = new Map();
    this.ignored = 0; // answers without a valid proof
    if (options.signer) {
      this.certificate = new crypto.X509Certificate(fs.readFileSync(options.signer.cert)).raw;
      this.key = crypto.createPrivateKey(fs.readFileSync(options.signer.key));
    }
  }

  async connect() {
    const { host, port, ca, cert, key } = this.options;
    this.client = await mqtt.connectAsync({
      protocol: 'mqtts',
      host,
      port,
      ca: fs.readFileSync(ca),
      cert: fs.readFileSync(cert),
      key: fs.readFileSync(key),
      minVersion: 'TLSv1.3',
      protocolVersion: 5,
      clean: true,
      clientId: crypto.randomBytes(8).toString('hex'),
      properties: { sessionExpiryInterval: 0 },
      reconnectPeriod: 200,
    });
    this.client.stream.setNoDelay?.(true);
    this.client.on('message', (topic, payload, packet) => this.receive(topic, payload, packet));
    await this.client.subscribeAsync(`bsfg/1/+/${this.zone}/rsp/${this.slot}/+`, { qos: 0 });
  }

  async close() {
    await this.client?.endAsync(true);
  }

  answerTopic(serving) {
    return `bsfg/1/${serving}/${this.zone}/rsp/${this.slot}/${this.instance}`;
  }

  receive(topic, payload, packet) {
    const correlation = packet.properties?.correlationData ?? Buffer.alloc(0);
    if (topic.split('/').at(-1) !== this.instance) return;
    if (correlation.length > 0) {
      this.waiting.get(correlation.toString('hex'))?.(topic, payload);
      return;
    }
    for (const name of JSON.parse(payload).waiting) this.waiting.get(name)?.(topic, null);
  }

  // What a signature of this exchange covers: the four names, and a digest.
  covered(what, serving, correlation, hash) {
    const names = [serving, this.zone, this.instance].map((name) => Buffer.from(name, 'latin1'));
    const counted = [...names, correlation].flatMap((value) => [Buffer.from([value.length]), value]);
    return Buffer.concat([Buffer.from(`bsfg/${what}/1\0`, 'latin1'), ...counted, hash]);
  }

  proof(serving, correlation, request, spoil) {
    const signature = crypto.sign(null, this.covered('request', serving, correlation, sha256(request)), this.key);
    if (spoil === 'signature') signature[0] ^= 1;
    const length = Buffer.alloc(2);
    length.writeUInt16LE(this.certificate.length);
    return Buffer.concat([Buffer.from([1]), length, this.certificate, signature]);
  }

  // Sends a request until it is answered. Returns { header, attachment, isProven }. `spoil`: 'signature' sends a wrong
  // one, 'none' sends none, 'expiry' sends no expiry.
  async ask(serving, operation, fields = {}, { limitMs = 20000, spoil } = {}) {
    const ends = Date.now() + limitMs;
    while (Date.now() < ends) {
      const answer = await this.askOnce(serving, operation, fields, ends, spoil);
      if (answer) return answer;
    }
    throw new NoAnswer(`no answer to ${operation}`);
  }

  async askOnce(serving, operation, fields, ends, spoil) {
    const correlation = crypto.randomBytes(16);
    const request = Buffer.from(
      fields.raw ?? JSON.stringify({ protocol: 'bsfg.replication', version: '1.0', operation, ...fields }),
    );
    const isSigned = this.key && (CHANGES.includes(operation) || spoil === 'signature') && spoil !== 'none';
    const payload = isSigned ? Buffer.concat([this.proof(serving, correlation, request, spoil), request]) : request;
    const properties = {
      responseTopic: this.answerTopic(serving),
      correlationData: correlation,
      messageExpiryInterval: Math.ceil((fields.wait_ms ?? 0) / 1000) + 5,
    };
    if (spoil === 'expiry') delete properties.messageExpiryInterval;
    const name = correlation.toString('hex');
    const answered = new Promise((resolve) => {
      const silentMs = fields.wait_ms ? SILENT_MS : RETRY_MS;
      let timer;
      const wait = () => {
        clearTimeout(timer);
        timer = setTimeout(() => resolve(null), Math.max(1, Math.min(silentMs, ends - Date.now())));
      };
      wait();
      this.waiting.set(name, (topic, answer) => {
        if (topic !== properties.responseTopic) return;
        if (answer === null) return wait();
        const read = this.read(serving, correlation, answer);
        if (!read) return;
        clearTimeout(timer);
        resolve(read);
      });
    });
    try {
      await this.client.publishAsync(`bsfg/1/${serving}/${this.zone}/req`, payload, { qos: 1, properties });
      return await answered;
    } finally {
      this.waiting.delete(name);
    }
  }

  // An answer, or null if it must be ignored.
  read(serving, correlation, payload) {
    let bytes = payload;
    let proof = null;
    if (payload.readUInt32LE(0) === 0xffffffff) {
      const length = payload.readUInt16LE(4);
      proof = { signer: payload.subarray(6, 6 + length), signature: payload.subarray(6 + length, 70 + length) };
      bytes = payload.subarray(70 + length);
    }
    const headerLength = bytes.readUInt32LE(0);
    const header = JSON.parse(bytes.subarray(4, 4 + headerLength).toString());
    const attachment = bytes.subarray(4 + headerLength);
    let isProven = false;
    if (proof) {
      const hash = sha256(hashed(bytes, header, headerLength));
      isProven = this.trust.proves(serving, this.covered('answer', serving, correlation, hash), proof.signature);
    }
    if (!isProven && this.trust.signers.has(serving)) {
      this.ignored++;
      return null;
    }
    return { header, attachment, isProven };
  }
}

// The bytes of an answer that its signature covers: of each batch only its digest.
function hashed(bytes, header, headerLength) {
  const batches = header.batches ?? [];
  if (batches.length === 0 || batches.length > 2048 || JSON.stringify(batches).length > 131072) return bytes;
  const parts = [bytes.subarray(0, 4 + headerLength)];
  let at = 4 + headerLength;
  for (const [, , length] of batches) {
    parts.push(bytes.subarray(at + length - 16, at + length));
    at += length;
  }
  return Buffer.concat([...parts, bytes.subarray(at)]);
}

module.exports = { Peer, NoAnswer };
