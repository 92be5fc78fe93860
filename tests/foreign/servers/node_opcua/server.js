// An OPC UA server on node-opcua, controlled by JSON lines: one command on standard input, one answer on standard output.
//
//     node server.js '{"port": 0, "variables": [{"name": "count", "type": "Int32", "period_ms": 100}]}'
//
// The first line it prints is {"ready": {"port", "url", "certificate"}}. A command is {"do": <name>, ...}, an answer
// {"ok": ...} or {"error": <text>}. tests/foreign/server.py has a method for each command. Ends with standard
// input. The options:
//
//     policies: ["None"], or of Basic256Sha256, Aes128_Sha256_RsaOaep, Aes256_Sha256_RsaPss (each with Sign and
//         SignAndEncrypt)
//     accept_unknown: trust every client's certificate; otherwise an unknown one is refused and put into rejected
//     only_tokens: the policies are for passwords; connections have none
//     allow_unencrypted: a password may be sent unencrypted over a connection without security
//     users: {name: password}; anonymous clients are then refused unless anonymous is set
//     limits: items_per_call, items, items_per_subscription, sessions, subscriptions, subscriptions_per_session,
//         connections, nodes_per_read, nodes_per_browse, nodes_per_history_read
//     limits_untold: the limits of subscriptions and items are enforced but not published
//     transport: fields of the Acknowledge: receiveBufferSize, sendBufferSize, maxMessageSize, maxChunkCount
//     tree: a machine in folders, with units, descriptions, a loop and nodes that may not be read
//         (servers/node_opcua/tree.js)
//     variables: a list of name, type, value, period_ms (counts up with this period), history (HistoryRead works;
//         "endless": each answer is the first page, with a continuation point), sampling_ms (0: every change is
//         reported), length (an array of this length), count (that many variables: name_0000 ...)
//     event_period_ms: period of events of the Server object; the text of each is a number, recorded as event
//     record: the file into which the server writes every value it sets; a restarted server continues from it,
//         history included
"use strict";

const fs = require("node:fs");
const net = require("node:net");
const path = require("node:path");
const readline = require("node:readline");

// Standard output belongs to the protocol; the library prints its warnings there.
for (const level of ["log", "info", "warn", "debug"]) {
    console[level] = (...words) => process.stderr.write(words.join(" ") + "\n");
}

// Of more than ten event items at one object, as sessions of killed clients leave them, Node warns with a text in which
// the library's objects throw, and the server would end.
require("node:events").defaultMaxListeners = 1000;

globalThis.crypto ??= require("node:crypto").webcrypto; // node 18 has it, and not as a global

const { OPCUACertificateManager } = require("node-opcua-certificate-manager");
const { nodesets } = require("node-opcua-nodesets");
const { MessageSecurityMode, SecurityPolicy } = require("node-opcua-secure-channel");
const { OPCUAServer } = require("node-opcua-server");
const { Variant } = require("node-opcua-variant");
const { NAMESPACE, Plant } = require("./plant");
const { addTree } = require("./tree");
const { Clock, PublishGate } = require("./trouble");

const HOST = "127.0.0.1";

class Program {
    constructor(options) {
        this.options = options;
        this.clock = new Clock();
        this.gate = new PublishGate();
        this.listening = true;
    }

    async start() {
        const port = this.options.port || (await freePort());
        this.server = new OPCUAServer(await serverOptions(this.options, port));
        await this.server.initialize();
        const addressSpace = this.server.engine.addressSpace;
        for (let i = 0; i < (this.options.namespaces_before ?? 0); i++) addressSpace.registerNamespace(`urn:other:${i}`);
        addressSpace.installAlarmsAndConditionsService();
        this.clock.showIn(addressSpace);
        this.level = 255;
        const level = addressSpace.findNode("ns=0;i=2267");
        level.bindVariable({ get: () => new Variant({ dataType: "Byte", value: this.level }) }, true);
        if (this.options.limits_untold) hideLimits(addressSpace);
        this.plant = new Plant(addressSpace, this.clock, this.options.record);
        if (this.options.every_type) this.plant.addEveryType();
        if (this.options.tree) addTree(this.plant);
        for (const variable of this.options.variables ?? []) this.plant.add(variable);
        this.alarm = addAlarm(this.plant);
        this.added = []; // variables, by commands
        if (this.options.first_number) {
            const begin = (subscription) => subscription._sequence_number_generator._set(this.options.first_number);
            this.server.on("create_session", (session) => session.on("new_subscription", begin));
        }
        await this.server.start();
        if (this.options.event_period_ms) this.plant.raiseEvents(this.options.event_period_ms);
        return { port, url: `opc.tcp://${this.options.host ?? HOST}:${port}`, certificate: this.server.certificateFile, namespace: NAMESPACE };
    }

    // --- commands: each takes the fields of its line -----------------------------------------------------------------

    add({ variables }) {
        for (const variable of variables) {
            this.plant.add(variable);
            this.added.push(variable.name);
        }
    }

    delete({ name }) {
        this.plant.delete(name);
    }

    recreate({ name }) {
        this.plant.recreate(name);
    }

    set({ name, ...what }) {
        this.plant.set(name, what);
    }

    permit({ name, on }) {
        this.plant.permit(name, on);
    }

    run({ on }) {
        this.plant.run(on);
    }

    shift_clock({ ms }) {
        this.clock.shiftMs = ms;
    }

    service_level({ level }) {
        this.level = level;
    }

    publish({ mode, status }) {
        this.gate.set(mode, this.sessions().map((session) => session.publishEngine), status);
    }

    kill_sessions({ with_subscriptions = true }) {
        const sessions = this.sessions();
        for (const session of sessions) {
            this.server.engine.closeSession(session.authenticationToken, with_subscriptions, "Forcing");
        }
        return sessions.length;
    }

    kill_subscriptions() {
        const subscriptions = this.subscriptions();
        for (const subscription of subscriptions) subscription.terminate();
        return subscriptions.length;
    }

    /** Sample a variable no more, and say nothing of it: its items stand, and publish nothing. */
    mute({ name }) {
        const nodeId = this.plant.get(name).node.nodeId.toString();
        const items = this.subscriptions().flatMap((subscription) => [...subscription.monitoredItems.values()]);
        const muted = items.filter((item) => item.itemToMonitor.nodeId.toString() === nodeId);
        for (const item of muted) item._stop_sampling();
        return muted.length;
    }

    cut() {
        for (const endpoint of this.server.endpoints) endpoint.abruptlyInterruptChannels();
    }

    async listen({ on }) {
        await (on ? this.server.resumeEndPoints() : this.server.suspendEndPoints());
        this.listening = on;
    }

    /** Undo every trouble that lasts, and delete what was added. */
    async recover() {
        for (const session of this.sessions()) this.server.engine.closeSession(session.authenticationToken, true, "Forcing");
        for (const name of this.added) if (this.plant.variables.get(name).node !== null) this.plant.delete(name);
        this.added = [];
        this.recoverAlarm();
        this.shift_clock({ ms: 0 });
        this.publish({ mode: "flow" });
        this.plant.run(true);
        if (!this.listening) await this.listen({ on: true });
        for (const options of this.options.variables ?? []) {
            const variable = this.plant.variables.get(options.name);
            if (variable?.node === null) this.plant.recreate(options.name);
        }
    }

    async trust({ file }) {
        const pem = fs.readFileSync(file);
        const der = pem.includes("-----BEGIN") ? fromPem(pem) : pem;
        await this.server.serverCertificateManager.trustCertificate(der);
    }

    /** Events of one kind, their texts numbered when there are several. */
    raise_event({ message, severity = 500, type = "BaseEventType", count = 1 }) {
        const source = this.server.engine.addressSpace.rootFolder.objects.server;
        for (let i = 0; i < count; i++) {
            source.raiseEvent(type, {
                message: { dataType: "LocalizedText", value: { text: count > 1 ? `${message} ${i}` : message } },
                severity: { dataType: "UInt16", value: severity },
            });
        }
    }

    /** Make the alarm on the variable `alarm_input` active or inactive. */
    set_alarm({ active }) {
        this.plant.set("alarm_input", { value: active ? 100 : 50 });
        return this.alarm_state();
    }

    acknowledge({ comment = "" }) {
        this.alarm.currentBranch().setAckedState(true);
        if (comment) this.alarm.currentBranch().setComment(comment);
        this.alarm.raiseNewCondition({ message: "acknowledged", severity: 100 });
        return this.alarm_state();
    }

    /** Inactive, acknowledged, and without branches, as at the start. */
    recoverAlarm() {
        if (this.alarm_state().active) this.set_alarm({ active: false });
        for (const branch of this.alarm.getBranches()) this.alarm.deleteBranch(branch);
        this.alarm.currentBranch().setAckedState(true);
        this.alarm.currentBranch().setRetain(false);
    }

    alarm_state() {
        const branch = this.alarm.currentBranch();
        return { active: branch.getActiveState(), acked: branch.getAckedState(), retain: branch.getRetain() };
    }

    status() {
        return {
            sessions: this.sessions().length,
            subscriptions: this.subscriptions().map((subscription) => ({
                id: subscription.id,
                items: subscription.monitoredItemCount,
                handles: [...subscription.monitoredItems.values()].map((item) => item.clientHandle),
                queue_sizes: [...subscription.monitoredItems.values()].map((item) => item.queueSize),
                publishing_interval_ms: subscription.publishingInterval,
            })),
            publish_requests: this.sessions().map((session) => session.publishEngine.pendingPublishRequestCount),
            publish_held: this.gate.held.length,
            orphans: this.server.engine._orphanPublishEngine?.subscriptionCount ?? 0, // subscriptions without a session
        };
    }

    async stop() {
        this.plant.run(false);
        this.gate.set("flow", []);
        await this.server.shutdown(0);
    }

    sessions() {
        return this.server.engine.getSessions();
    }

    subscriptions() {
        return this.sessions().flatMap((session) => session.publishEngine.subscriptions);
    }
}

const COMMANDS = new Set(
    "add delete recreate set permit run service_level shift_clock publish kill_sessions kill_subscriptions mute cut listen recover trust".split(" ").concat(
        "raise_event set_alarm acknowledge alarm_state status stop".split(" "),
    ),
);

/** node-opcua's options from ours. */
async function serverOptions(options, port) {
    const { limits = {}, users = {}, policies = ["None"] } = options;
    const secured = policies.filter((policy) => policy !== "None");
    const certificates = new OPCUACertificateManager({
        rootFolder: options.pki,
        automaticallyAcceptUnknownCertificate: options.accept_unknown ?? false,
        disableFileWatchers: true,
    });
    await certificates.initialize();
    return {
        host: options.host ?? HOST, // listens there alone
        hostname: options.advertised ?? options.host ?? HOST,
        port,
        nodeset_filename: [nodesets.standard, path.join(__dirname, "plant.NodeSet2.xml")],
        serverCertificateManager: certificates,
        userCertificateManager: certificates,
        serverInfo: { applicationUri: "urn:bsfg:foreign:node-opcua", productUri: "urn:bsfg:foreign" },
        securityPolicies: policies.map((policy) => SecurityPolicy[policy]),
        securityModes: [
            ...(policies.includes("None") ? [MessageSecurityMode.None] : []),
            ...(secured.length && !options.only_tokens ? [MessageSecurityMode.Sign, MessageSecurityMode.SignAndEncrypt] : []),
        ],
        allowUnsecurePassword: options.allow_unencrypted ?? false,
        allowAnonymous: options.anonymous ?? Object.keys(users).length === 0,
        userManager: { isValidUser: (name, password) => name in users && users[name] === password },
        maxConnectionsPerEndpoint: limits.connections ?? 50,
        defaultSecureTokenLifetime: options.token_lifetime_ms,
        transportSettings: options.transport && { adjustTransportLimits: (hello) => ({ ...hello, ...options.transport }) },
        serverCapabilities: {
            maxSessions: limits.sessions ?? 50,
            maxSubscriptions: limits.subscriptions ?? 50,
            maxSubscriptionsPerSession: limits.subscriptions_per_session ?? 50,
            maxMonitoredItems: limits.items ?? 100_000,
            maxMonitoredItemsPerSubscription: limits.items_per_subscription ?? 100_000,
            minSupportedSampleRate: 0,
            operationLimits: {
                maxMonitoredItemsPerCall: limits.items_per_call ?? 1000,
                maxNodesPerRead: limits.nodes_per_read ?? 1000,
                maxNodesPerBrowse: limits.nodes_per_browse ?? 1000,
                maxNodesPerHistoryReadData: limits.nodes_per_history_read ?? 100,
            },
        },
    };
}

/** Enforce the limits of subscriptions and items, and tell none. */
function hideLimits(addressSpace) {
    const { serverCapabilities } = addressSpace.rootFolder.objects.server;
    for (const name of ["MaxSubscriptions", "MaxSubscriptionsPerSession", "MaxMonitoredItems", "MaxMonitoredItemsPerSubscription"]) {
        const node = serverCapabilities.getChildByName(name);
        const none = { dataType: "UInt32", value: 0 };
        node?.bindVariable({ get: () => new Variant(none) }, true);
    }
}

/** An alarm that is active while `alarm_input` is above 90. */
function addAlarm(plant) {
    plant.addOne({ name: "alarm_input", value: 50 });
    const { node } = plant.get("alarm_input");
    plant.folder.setEventNotifier?.(1);
    plant.addressSpace.rootFolder.objects.server.addReference({ referenceType: "HasNotifier", nodeId: plant.folder });
    plant.folder.addReference({ referenceType: "HasEventSource", nodeId: node });
    const alarm = plant.namespace.instantiateExclusiveLimitAlarm("ExclusiveLimitAlarmType", {
        browseName: "PressureAlarm",
        organizedBy: plant.folder,
        conditionSource: node,
        inputNode: node,
        highHighLimit: 95,
        highLimit: 90,
        lowLimit: 10,
        lowLowLimit: 5,
        optionals: ["ConfirmedState", "Confirm"],
    });
    alarm.conditionName.setValueFromSource({ dataType: "String", value: "PressureAlarm" });
    return alarm;
}

async function freePort() {
    const probe = net.createServer();
    await new Promise((resolve) => probe.listen(0, HOST, resolve));
    const { port } = probe.address();
    await new Promise((resolve) => probe.close(resolve));
    return port;
}

function fromPem(pem) {
    return Buffer.from(pem.toString().replace(/-----[^-]+-----|\s/g, ""), "base64");
}

function say(answer) {
    process.stdout.write(JSON.stringify(answer) + "\n");
}

async function main() {
    const program = new Program(JSON.parse(process.argv[2] ?? "{}"));
    say({ ready: await program.start() });
    for await (const line of readline.createInterface({ input: process.stdin })) {
        try {
            const { do: name, ...fields } = JSON.parse(line);
            if (!COMMANDS.has(name)) throw new Error(`no command is called ${name}`);
            say({ ok: (await program[name](fields)) ?? null });
            if (name === "stop") break;
        } catch (error) {
            say({ error: error.message });
        }
    }
    process.exit(0);
}

main().catch((error) => {
    process.stderr.write(error.stack + "\n");
    process.exit(1);
});
