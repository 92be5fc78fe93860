// Hooks into node-opcua: its clock shifted, its answers to Publish held back, refused or lost.
"use strict";

const { ServerSidePublishEngine } = require("node-opcua-server");
const { statusCode } = require("./values");
// The module itself, not the package's face: every reader looks the function up there at each call.
const dateTime = require("node-opcua-date-time/dist/date_time.js");

/** The server's clock for CurrentTime and source times. Its own timers and time-outs stay on the machine's. */
class Clock {
    shiftMs = 0;

    constructor() {
        const original = dateTime.getCurrentClock;
        dateTime.getCurrentClock = () => {
            const now = original();
            return { timestamp: new Date(now.timestamp.getTime() + this.shiftMs), picoseconds: now.picoseconds };
        };
    }

    now() {
        return new Date(Date.now() + this.shiftMs);
    }

    /** Now, as finely as the machine tells: a time cut to milliseconds would lie before what happened earlier. */
    nowNs() {
        const ms = performance.timeOrigin + performance.now() + this.shiftMs;
        return BigInt(Math.floor(ms)) * 1_000_000n + BigInt(Math.floor((ms % 1) * 10_000)) * 100n;
    }

    /** Make ServerStatus.CurrentTime follow this clock. */
    showIn(addressSpace) {
        const status = addressSpace.rootFolder.objects.server.serverStatus;
        const now = () => this.now();
        status.$extensionObject = new Proxy(status.$extensionObject, {
            get: (target, field) => (field === "currentTime" ? (target[field], now()) : target[field]),
        });
    }
}

/** What becomes of Publish requests: "flow", "hold" (until flow), "refuse" (a fault), "lose" (the answer is dropped). */
class PublishGate {
    mode = "flow";
    held = [];

    constructor() {
        const gate = this;
        const original = ServerSidePublishEngine.prototype._on_PublishRequest;
        this.pass = (engine, request, callback) => original.call(engine, request, callback);
        ServerSidePublishEngine.prototype._on_PublishRequest = function (request, callback) {
            gate.take(this, request, callback ?? (() => {}));
        };
    }

    take(engine, request, callback) {
        if (this.mode === "hold") {
            this.held.push([engine, request, callback]);
        } else if (this.mode === "refuse") {
            const data = { request, callback, results: [], serverTimeWhenReceived: Date.now() };
            engine._send_error_for_request(data, this.status);
        } else {
            // Whether an answer is lost is decided when it is sent, not when the request came.
            this.pass(engine, request, (...answer) => this.mode === "lose" || callback(...answer));
        }
    }

    /** Change the mode. What is under way in these engines (one a session) changes with it. */
    set(mode, engines, status = "BadTooManyPublishRequests") {
        if (!["flow", "hold", "refuse", "lose"].includes(mode)) throw new Error(`publish cannot ${mode}`);
        this.mode = mode;
        this.status = statusCode(status);
        const waiting = this.held.splice(0);
        if (mode === "hold" || mode === "refuse") {
            for (const engine of engines) {
                for (const data of engine._publish_request_queue.splice(0)) {
                    waiting.push([engine, data.request, data.callback]);
                }
            }
        }
        for (const [engine, request, callback] of waiting) this.take(engine, request, callback);
    }
}

module.exports = { Clock, PublishGate };
