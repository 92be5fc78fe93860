'use strict';
// Floods: each runs until it is stopped and counts what became of what it sent.

const { COMMON, Peer } = require('./peer.js');

const ANSWER_MS = 5000;

class Flood {
    constructor() {
        this.stopped = false;
        this.count = {};
        this.peers = [];
        this.work = [];
    }

    counted(what, by = 1) {
        this.count[what] = (this.count[what] || 0) + by;
    }

    async stop() {
        this.stopped = true;
        this.peers.forEach((peer) => peer.end());
        await Promise.race([Promise.all(this.work), new Promise((resolve) => { setTimeout(resolve, 1000); })]);
        return this.count;
    }

    async session(options, spec) {
        const peer = await new Peer(options, spec.zone).connect();
        await peer.listen(spec.serving);
        this.peers.push(peer);
        this.counted('sessions');
        return peer;
    }

    // A session that is lost is opened again, as an attacker would.
    async kept(options, spec, peer) {
        if (!peer.closed || this.stopped) return peer;
        this.counted('disconnected');
        try {
            return await this.session(options, spec);
        } catch (error) {
            this.counted('refused');
            await new Promise((resolve) => { setTimeout(resolve, 100); });
            return peer;
        }
    }
}

const requestOf = (operation, fields) => JSON.stringify({ ...COMMON, operation, ...fields });

// So many requests open at once over some sessions, each repeated as soon as it is answered.
async function requests(flood, options, spec) {
    const sessions = await Promise.all(Array.from({ length: spec.sessions || 1 }, () => flood.session(options, spec)));
    const one = async (index) => {
        let number = 0;
        while (!flood.stopped) {
            const at = index % sessions.length;
            sessions[at] = await flood.kept(options, spec, sessions[at]);
            number += 1;
            const text = requestOf(spec.operation, spec.fields).replaceAll('{n}', `${index}-${spec.same ? 0 : number}`);
            const answer = await sessions[at].ask(spec.serving, text, spec.answer_ms || ANSWER_MS);
            if (flood.stopped) return;
            flood.counted(answer === null ? 'silent' : (answer.header.error || { code: 'ok' }).code);
        }
    };
    flood.work = Array.from({ length: spec.open || 64 }, (_, index) => one(index));
}


// Sessions that request large pages and never read what comes.
async function silent(flood, options, spec) {
    const one = async () => {
        while (!flood.stopped) {
            let peer;
            try {
                peer = await flood.session(options, spec);
            } catch (error) {
                flood.counted('refused');
                await new Promise((resolve) => { setTimeout(resolve, 200); });
                continue;
            }
            peer.client.stream.unpipe();
            peer.client.stream.pause();
            while (!flood.stopped && !peer.closed && peer.client.connected) {
                peer.ask(spec.serving, requestOf(spec.operation, spec.fields), 0);
                flood.counted('sent');
                await new Promise((resolve) => { setTimeout(resolve, spec.every_ms || 20); });
            }
            if (!flood.stopped) flood.counted('disconnected');
        }
    };
    flood.work = Array.from({ length: spec.sessions }, one);
}


const KINDS = { requests, silent };

async function start(options, spec) {
    const flood = new Flood();
    await KINDS[spec.kind](flood, options, spec);
    return flood;
}

module.exports = { start };
