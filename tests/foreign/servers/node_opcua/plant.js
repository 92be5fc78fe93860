// The variables of the server: made, changed at their periods, deleted and made again, each value in the record.
//
// The record is a file of JSON lines, {"name", "time_ns", "value", "status"}: what the server set, by its own account, for
// a test to compare a store with. A server started with the record of an earlier one goes on where that ended: its
// counters continue, and variables with history have the old values in it.
"use strict";

const fs = require("node:fs");
const { DataValue } = require("node-opcua-data-value");
const { coerceNodeId } = require("node-opcua-nodeid");
const { EVERY_TYPE, statusCode, variant } = require("./values");

const HISTORY_VALUES_MAX = 200_000; // of one variable; an hour at 50 a second
const NAMESPACE = "urn:bsfg:foreign";
const ANONYMOUS = "i=15644"; // the role that everybody has (OPC 10000-3, 4.9.2)
const BROWSE = 1, READ = 32; // permissions (OPC 10000-3, 8.55)

class Plant {
    constructor(addressSpace, clock, recordFile) {
        this.addressSpace = addressSpace;
        this.clock = clock;
        this.variables = new Map();
        this.timers = new Map();
        this.isRunning = true;
        this.namespace = addressSpace.registerNamespace(NAMESPACE);
        this.folder = this.namespace.addObject({
            organizedBy: addressSpace.rootFolder.objects,
            nodeId: "s=plant",
            browseName: "Plant",
        });
        this.recordFile = recordFile;
        this.earlier = recordFile && fs.existsSync(recordFile) ? readRecord(recordFile) : new Map();
        this.record = recordFile ? fs.openSync(recordFile, "a") : null;
    }

    /** Add a variable, or `count` of them, named name_0000 and on. */
    add(options) {
        if (options.count === undefined) return this.addOne(options);
        for (let i = 0; i < options.count; i++) {
            this.addOne({ ...options, name: `${options.name}_${String(i).padStart(4, "0")}` });
        }
    }

    addOne({ name, type = "Double", value, period_ms = 0, history = false, data_type, sampling_ms = 0, length }) {
        const earlier = this.earlier.get(name) ?? [];
        const variable = { name, type, data_type, period_ms, history, sampling_ms, length, count: earlier.length, lastNs: 0n };
        variable.value = value === undefined ? counted(variable) : value;
        this.variables.set(name, variable);
        this.makeNode(variable);
        if (history) this.restoreHistory(variable, earlier);
        if (earlier.length) variable.lastNs = BigInt(earlier.at(-1).time_ns);
        this.set(name, {});
        if (period_ms) this.startTimer(period_ms);
    }

    addEveryType() {
        for (const [name, type, value] of EVERY_TYPE) this.addOne({ name, type, value });
        const types = this.addressSpace.getNamespaceIndex("urn:bsfg:foreign:types");
        const structure = (name, fields) =>
            this.addressSpace.constructExtensionObject(this.addressSpace.findDataType(name, types), fields);
        const place = structure("Position", { x: 1.5, y: -2.5 });
        const report = structure("PumpReport", {
            serial: "P-100",
            mode: 7,
            speed: 1450,
            since: new Date("2026-01-01T00:00:00Z"),
            place,
            temperatures: [20.5, 21.5],
        });
        const of = (id) => ({ type: "ExtensionObject", data_type: `ns=${types};i=${id}` });
        this.addOne({ name: "enumeration", type: "Int32", value: 7, data_type: `ns=${types};i=3001` });
        this.addOne({ name: "structure", value: place, ...of(3002) });
        this.addOne({ name: "structure_nested", value: report, ...of(3003) });
        this.addOne({ name: "structure_array", value: [place, structure("Position", { x: 3, y: 4 })], ...of(3002) });
    }

    makeNode(variable) {
        variable.node = this.namespace.addVariable({
            componentOf: this.folder,
            nodeId: `s=${variable.name}`,
            browseName: variable.name,
            dataType: variable.data_type ? coerceNodeId(variable.data_type) : dataTypeOf(variable.type),
            valueRank: Array.isArray(variable.value) ? 1 : -1,
            minimumSamplingInterval: variable.sampling_ms, // 0: every change is reported
        });
        if (variable.history) {
            const options = { maxOnlineValues: HISTORY_VALUES_MAX };
            this.addressSpace.installHistoricalDataNode(variable.node, options);
            if (variable.history === "endless") answerWithoutEnd(variable.node);
        }
    }

    restoreHistory(variable, earlier) {
        for (const { time_ns, value, status } of earlier) {
            variable.node.varHistorian.push(dataValue(variable.type, value, status, BigInt(time_ns)));
        }
    }

    /** Set a value now, or at `time_ns`; the record gets it first. */
    set(name, { value, status = "Good", time_ns }) {
        const variable = this.get(name);
        if (value === undefined) value = variable.value;
        const at = time_ns === undefined ? this.nextTime(variable) : BigInt(time_ns);
        const made = dataValue(variable.type, value, status, at);
        variable.value = value;
        variable.status = status;
        this.write({ name, time_ns: String(at), value, status: made.statusCode.value });
        variable.node._internal_set_dataValue(made);
    }

    /** Raise an event of the Server object every so often; each has a number as its text, and a line in the record. */
    raiseEvents(periodMs) {
        let count = (this.earlier.get("event") ?? []).length;
        const source = this.addressSpace.rootFolder.objects.server;
        setInterval(() => {
            if (!this.isRunning) return;
            count += 1;
            this.write({ name: "event", time_ns: String(this.clock.nowNs()), value: count, status: 0 });
            source.raiseEvent("BaseEventType", {
                message: { dataType: "LocalizedText", value: { text: String(count) } },
                severity: { dataType: "UInt16", value: 500 },
            });
        }, periodMs);
    }

    write(line) {
        if (this.record !== null) fs.writeSync(this.record, JSON.stringify(line) + "\n");
    }

    /** A source time later than the last, unless the clock was set back. */
    nextTime(variable) {
        const at = this.clock.nowNs();
        const isSetBack = at + 1_000_000_000n < variable.lastNs;
        variable.lastNs = at > variable.lastNs || isSetBack ? at : variable.lastNs + 100n;
        return variable.lastNs;
    }

    /** Let the role that everybody has read a variable, or not. */
    permit(name, isPermitted) {
        const permissions = isPermitted ? BROWSE | READ : BROWSE;
        this.get(name).node.setRolePermissions([{ roleId: coerceNodeId(ANONYMOUS), permissions }]);
    }

    delete(name) {
        const variable = this.get(name);
        this.namespace.deleteNode(variable.node.nodeId);
        variable.node = null;
    }

    recreate(name) {
        const variable = this.variables.get(name);
        if (variable === undefined || variable.node !== null) throw new Error(`${name} was not deleted`);
        this.makeNode(variable);
        if (variable.history && this.recordFile) {
            this.restoreHistory(variable, readRecord(this.recordFile).get(name) ?? []); // kept by node id, as historians do
        }
        if (variable.period_ms) this.change(variable);
        else this.set(name, {});
    }

    change(variable) {
        variable.count += 1;
        this.set(variable.name, { value: counted(variable), status: variable.status });
    }

    startTimer(periodMs) {
        if (this.timers.has(periodMs)) return;
        const tick = () => {
            for (const variable of this.variables.values()) {
                if (variable.period_ms === periodMs && variable.node !== null) this.change(variable);
            }
        };
        this.timers.set(periodMs, setInterval(tick, periodMs));
    }

    /** Let the variables change no more, or again. */
    run(isRunning) {
        this.isRunning = isRunning;
        for (const timer of this.timers.values()) clearInterval(timer);
        const periods = [...this.timers.keys()];
        this.timers.clear();
        for (const period of isRunning ? new Set([...periods, ...this.periods()]) : []) this.startTimer(period);
    }

    periods() {
        return [...this.variables.values()].map((variable) => variable.period_ms).filter((period) => period);
    }

    get(name) {
        const variable = this.variables.get(name);
        if (variable === undefined || variable.node === null) throw new Error(`there is no variable ${name}`);
        return variable;
    }
}

/** The value of a changing variable: how often it has changed; of an array each element one more than the one before. */
function counted({ type, count, length }) {
    if (length) return Array.from({ length }, (_, place) => counted({ type, count: count + place }));
    return { Boolean: count % 2 === 1, String: `v${count}`, ByteString: btoa(count), DateTime: count * 1000 }[type] ?? count;
}

function dataTypeOf(type) {
    return { ExtensionObject: "Structure", Variant: "BaseDataType", Null: "BaseDataType" }[type] ?? type;
}

function dataValue(type, value, status, timeNs) {
    const timestamp = new Date(Number(timeNs / 1_000_000n));
    const picoseconds = Number(timeNs % 1_000_000n) * 1000;
    const made = new DataValue({ value: variant(type, value), statusCode: statusCode(status) });
    made.sourceTimestamp = made.serverTimestamp = timestamp;
    made.sourcePicoseconds = made.serverPicoseconds = picoseconds;
    return made;
}

/** Answer each HistoryRead of a node with the first page, and with a continuation point. */
function answerWithoutEnd(node) {
    const original = node._historyRead;
    node._historyRead = function (context, details, range, encoding, continuation, callback) {
        const first = { ...continuation, continuationPoint: null };
        original.call(this, context, details, range, encoding, first, (error, result) => {
            if (result) result.continuationPoint = Buffer.from("more");
            callback(error, result);
        });
    };
}

function readRecord(file) {
    const found = new Map();
    for (const line of fs.readFileSync(file, "utf8").split("\n")) {
        if (!line.endsWith("}")) continue; // the last one of a killed server may be cut
        const entry = JSON.parse(line);
        if (!found.has(entry.name)) found.set(entry.name, []);
        found.get(entry.name).push(entry);
    }
    return found;
}

module.exports = { NAMESPACE, Plant };
