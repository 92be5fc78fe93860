// A Modbus TCP device on modbus-serial, controlled by lines of words: one command on standard input, one answer, a JSON
// object, on standard output.
//
//     node server.js tcp 0 1 2      units 1 and 2 on 127.0.0.1, port found free
//
// The commands are `set`, `clear`, `status` and, of the faults, `exception` of the libmodbus server beside it
// (libmodbus/server.c). Ends with standard input.
"use strict";

const readline = require("node:readline");
const { ServerTCP } = require("modbus-serial");

const ADDRESSES = 65536;
const ANY_UNIT = 255; // the library's word for a gateway
const tell = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");

const units = new Map(); // by unit: a table each
let faults = [];
let requests = 0;

function addUnit(unit) {
    const table = () => new Uint16Array(ADDRESSES);
    units.set(unit, { coil: table(), discrete: table(), holding: table(), input: table() });
}

// A read of `count` entries; what it throws becomes the answer's exception.
function read(table, address, count, unit) {
    requests += 1;
    const met = faults.find(
        (fault) =>
            (fault.unit < 0 || fault.unit === unit) &&
            (fault.table === "any" || fault.table === table) &&
            address <= fault.last &&
            address + count > fault.first,
    );
    if (met) throw Object.assign(new Error("refused"), { modbusErrorCode: met.code });
    if (!units.has(unit)) throw Object.assign(new Error("no such unit"), { modbusErrorCode: 11 });
    return Array.from(units.get(unit)[table].subarray(address, address + count));
}

// The library asks for coils and discrete inputs one by one.
const vector = {
    getCoil: (address, unit) => read("coil", address, 1, unit)[0] !== 0,
    getDiscreteInput: (address, unit) => read("discrete", address, 1, unit)[0] !== 0,
    getMultipleHoldingRegisters: (address, count, unit) => read("holding", address, count, unit),
    getMultipleInputRegisters: (address, count, unit) => read("input", address, count, unit),
};

const commands = {
    set: ([unit, table, address, ...values]) => {
        units.get(Number(unit))[table].set(values.map(Number), Number(address));
    },
    fault: ([unit, table, first, last, kind, code, times]) => {
        if (kind !== "exception" || Number(times) >= 0) throw new Error("only exceptions for ever");
        faults.push({ unit: Number(unit), table, first: Number(first), last: Number(last), code: Number(code) });
    },
    clear: () => {
        faults = [];
    },
    status: () => ({ requests }),
};

function obey(line) {
    const [name, ...words] = line.split(" ");
    try {
        if (!(name in commands)) throw new Error("no such command");
        tell({ ok: commands[name](words) ?? null });
    } catch (error) {
        tell({ error: error.message });
    }
}

const [, , , port, ...given] = process.argv;
given.map(Number).forEach(addUnit);
const server = new ServerTCP(vector, { host: "127.0.0.1", port: Number(port), unitID: ANY_UNIT });
server.on("initialized", () => tell({ ready: { port: server._server.address().port } }));
server.on("socketError", () => {}); // a client that hangs up is none
readline
    .createInterface({ input: process.stdin })
    .on("line", obey)
    .on("close", () => process.exit(0));
