'use strict';
// The attacker as a process: one command, a JSON object, on a line of standard input; one answer on standard output.
//
//     node attacker.js '{"host": "127.0.0.1", "port": 8883, "zones": {"evil": {"ca": FILE, "cert": FILE, "key": FILE}}}'

const readline = require('readline');
const { COMMON, Peer } = require('./peer.js');
const floods = require('./floods.js');

const options = JSON.parse(process.argv[2]);
const peers = new Map();
const running = new Map();
const taken = [];

// The session of a zone, opened at its first use and again when it was lost.
async function peerOf(zone) {
    const before = peers.get(zone);
    if (before && !before.closed) return before;
    const peer = await new Peer(options, zone).connect();
    if (before) Object.assign(peer, { logs: before.logs, patches: before.patches, life: before.life, lost: before.closed });
    peers.set(zone, peer);
    return peer;
}

const told = (answer) => (answer === null ? { silent: true } : { header: answer.header, text: answer.text, attached: answer.attachment.length, signed_by: answer.signedBy });

const COMMANDS = {
    // A request built from its fields, or `raw`, its text as given.
    async ask({ zone, serving, operation, fields, raw, limit_ms: limitMs, properties }) {
        const peer = await peerOf(zone);
        await peer.listen(serving);
        const text = raw === undefined ? JSON.stringify({ ...COMMON, operation, ...fields }) : raw;
        return told(await peer.ask(serving, text, limitMs || 10000, properties));
    },
    async serve({ zone, asking, life }) {
        const peer = await peerOf(zone);
        if (life) peer.life = life;
        await peer.serve(asking);
        return peer.life;
    },
    // Forget what was served, and serve under a new life.
    async begin({ zone }) {
        (await peerOf(zone)).begin();
        return null;
    },
    async append({ zone, stream, batch }) {
        const peer = await peerOf(zone);
        return peer.log(stream).append(stream, { zone, life: peer.life, ...batch });
    },
    // Take a page that another zone serves at another port, and serve it as it is; its last offset there. `spoil` changes
    // the record of that many batches first. `replay` serves again what was taken so before.
    async relay({ zone, from, port, stream, after, spoil }) {
        const source = await new Peer(options, zone, port).connect();
        await source.listen(from);
        const ask = (fields) => source.ask(from, JSON.stringify({ ...COMMON, stream, ...fields }), 10000);
        const held = (await ask({ operation: 'GetBounds' })).header;
        const last = { last_offset: held.end_offset, life: held.end_life };
        const range = { first_offset: (after || 0) + 1, ...last, limit: 1000000, signers_known: [] };
        const page = await ask({ operation: 'FetchRange', ...range });
        source.end();
        if (page.header.status !== 'ok') throw new Error(page.text);
        taken.push(page);
        return (await peerOf(zone)).log(stream).relay(page, spoil || 0);
    },
    async replay({ zone, stream, number }) {
        return (await peerOf(zone)).log(stream).relay(taken[number], 0);
    },
    // The next `times` answers to an operation get these fields, this attachment, or are these bytes.
    async patch({ zone, ...patch }) {
        (await peerOf(zone)).patches.push({ times: 1, ...patch });
        return null;
    },
    async unpatch({ zone }) {
        (await peerOf(zone)).patches = [];
        return null;
    },
    async requests({ zone, operation }) {
        return (await peerOf(zone)).requests.filter((one) => !operation || one.operation === operation);
    },
    async flood({ name, ...spec }) {
        running.set(name, await floods.start(options, spec));
        return null;
    },
    async counts({ name }) {
        return running.get(name).count;
    },
    async stop_flood({ name }) {
        const flood = running.get(name);
        running.delete(name);
        return flood.stop();
    },
};

process.on('unhandledRejection', (error) => { process.stderr.write(`${error && error.stack}\n`); });
const say = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);

readline.createInterface({ input: process.stdin, crlfDelay: Infinity }).on('line', async (line) => {
    const { do: name, ...command } = JSON.parse(line);
    try {
        say({ ok: await COMMANDS[name](command) });
    } catch (error) {
        say({ error: String((error && error.message) || error) });
    }
}).on('close', () => process.exit(0));

say({ ready: {} });
