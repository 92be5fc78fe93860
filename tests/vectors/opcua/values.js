// Writes values.json: a PublishResponse with one value of each shape, and the data types of its structures, as
// node-opcua encodes them. Run where node-opcua is installed: node values.js
// (npm install node-opcua@2.182; NODE_PATH names the folder node_modules if it lies elsewhere).
"use strict";
const fs = require("fs"), opcua = require("node-opcua");
const { BinaryStream } = require("node-opcua-binary-stream");
const { ExpandedNodeId, NodeIdType } = require("node-opcua-nodeid");
const { AttributeIds, DataType, DataValue, LocalizedText, QualifiedName, StatusCodes, Variant } = opcua;
const { coerceNodeId, nodesets, VariantArrayType } = opcua;
const ARRAY = VariantArrayType.Array, MATRIX = VariantArrayType.Matrix;
const WHEN = new Date(Date.UTC(2026, 0, 2, 3, 4, 5, 678));

function hex(encodable) {
  const stream = new BinaryStream(1000000);
  encodable.encode(stream);
  return stream.buffer.subarray(0, stream.length).toString("hex");
}

function values(space, types, plant) {
  const make = (number, fields) => space.constructExtensionObject(space.findNode(`ns=${types};i=${number}`), fields);
  const point = (x, y) => make(3003, { x, y });
  const recipe = make(3004, {
    name: "R-7", target: 7.5, steps: [{ x: 1, y: 2.5 }, { x: -0.0, y: NaN }], mode: 1, modes: [0, 7],
  });
  const machine = make(3006, {
    id: coerceNodeId(`ns=${plant};s=Line1`), made: WHEN, position: { x: 1, y: 2 }, recipe,
    choices: [{ number: 1.5 }, { text: "t" }, { at: { x: 3, y: 4 } }], labels: ["a", null, ""], pressure: 1.25,
    serial: [2097152, 1], blob: Buffer.from([0, 255]),
    any: new Variant({ dataType: DataType.ExtensionObject, value: point(5, 6) }),
  });
  const text = (text, locale) => new LocalizedText({ text, locale });
  const one = (dataType, value) => ({ dataType, value });
  const many = (dataType, value) => ({ dataType, value, arrayType: ARRAY });
  return {
    date: one(DataType.DateTime, WHEN),
    dates: many(DataType.DateTime, [WHEN, new Date(Date.UTC(2026, 5, 1))]),
    doubles: many(DataType.Double, new Float64Array([-0.0, 0.0, NaN, Infinity, -Infinity, 1.5])),
    floats: many(DataType.Float, new Float32Array([-0.0, NaN, 0.1])),
    minus_zero: one(DataType.Double, -0.0),
    node: one(DataType.NodeId, coerceNodeId(`ns=${plant};s=Line 1;x`)),
    nodes: many(DataType.NodeId, [
      `ns=${types};i=3003`, "i=85", `ns=${plant};g=72962B91-FA75-4AE6-8D28-B404DC7DAF63`, `ns=${plant};b=AP8=`, "ns=77;i=1",
    ].map((id) => coerceNodeId(id))),
    expanded: one(DataType.ExpandedNodeId, new ExpandedNodeId(NodeIdType.STRING, "Far", 0, "urn:elsewhere", 2)),
    expanded_here: one(DataType.ExpandedNodeId, new ExpandedNodeId(NodeIdType.NUMERIC, 70000, plant)),
    qualified: one(DataType.QualifiedName, new QualifiedName({ namespaceIndex: plant, name: "Q" })),
    null_string: one(DataType.String, null),
    empty_string: one(DataType.String, ""),
    null_bytes: one(DataType.ByteString, null),
    empty_bytes: one(DataType.ByteString, Buffer.alloc(0)),
    strings: many(DataType.String, ["a", null, "", "\u00fc"]),
    empty_strings: many(DataType.String, []),
    byte_strings: many(DataType.ByteString, [Buffer.from([1, 2]), null, Buffer.alloc(0)]),
    text: one(DataType.LocalizedText, text("warm")),
    text_de: one(DataType.LocalizedText, text("\u00d6l warm", "de")),
    text_null: one(DataType.LocalizedText, new LocalizedText({})),
    texts: many(DataType.LocalizedText, [text("ja", "de"), text("yes")]),
    matrix: { dataType: DataType.Int32, arrayType: MATRIX, dimensions: [2, 3], value: new Int32Array([1, 2, 3, 4, 5, 6]) },
    guids: many(DataType.Guid, ["72962B91-FA75-4AE6-8D28-B404DC7DAF63"]),
    statuses: many(DataType.StatusCode, [StatusCodes.Good, StatusCodes.BadTimeout]),
    variants: many(DataType.Variant, [
      new Variant(one(DataType.Double, -0.0)), new Variant(one(DataType.String, "x")), new Variant(many(DataType.Byte, Buffer.from([1, 2]))),
    ]),
    int64s: many(DataType.Int64, [[0, 5], [0x7fffffff, 0xffffffff]]),
    booleans: many(DataType.Boolean, [true, false]),
    point: one(DataType.ExtensionObject, point(1.5, -0.0)),
    points: many(DataType.ExtensionObject, [point(1, 2), null]),
    recipe: one(DataType.ExtensionObject, recipe),
    bare_recipe: one(DataType.ExtensionObject, make(3004, { name: null, steps: null, mode: 5, modes: [] })),
    choice: one(DataType.ExtensionObject, make(3005, { text: "sel" })),
    machine: one(DataType.ExtensionObject, machine),
    null_structure: one(DataType.ExtensionObject, null),
    range: one(DataType.ExtensionObject, new opcua.Range({ low: -1, high: 2.5 })),
    last: one(DataType.Double, 42.5),
  };
}

function dataTypes(space, index) {
  const context = opcua.SessionContext.defaultContext, found = {};
  const vendor = [3001, 3003, 3004, 3005, 3006, 3007].map((number) => `ns=${index};i=${number}`);
  for (const id of [...vendor, "ns=0;i=294", "ns=0;i=12756"]) {
    const type = space.findNode(id), encoding = type.getEncodingNode("Default Binary");
    found[id] = {
      definition: hex(type.readAttribute(context, AttributeIds.DataTypeDefinition)),
      supertype: type.subtypeOfObj.nodeId.toString(),
      encoding: encoding ? encoding.nodeId.toString() : null,
    };
  }
  return found;
}

(async () => {
  const server = new opcua.OPCUAServer({ port: 0, nodeset_filename: [nodesets.standard, `${__dirname}/vendor.NodeSet2.xml`] });
  await server.initialize();
  const space = server.engine.addressSpace, plant = space.registerNamespace("urn:vendor:plant").index;
  const index = space.getNamespaceIndex("urn:vendor:types"), all = values(space, index, plant);
  const changes = Object.values(all).map((value, handle) => new opcua.MonitoredItemNotification({
    clientHandle: handle,
    value: new DataValue({ value: new Variant(value), statusCode: StatusCodes.Good, sourceTimestamp: WHEN }),
  }));
  const message = new opcua.NotificationMessage({
    sequenceNumber: 9, publishTime: WHEN, notificationData: [new opcua.DataChangeNotification({ monitoredItems: changes })],
  });
  const response = new opcua.PublishResponse({
    responseHeader: { timestamp: WHEN }, subscriptionId: 5, availableSequenceNumbers: [9], notificationMessage: message,
  });
  const version = require("node-opcua/package.json").version;
  const vectors = {
    encoder: `node-opcua ${version}`, namespaces: space.getNamespaceArray().map((namespace, index) => index === 1 ? "urn:vendor:server" : namespace.namespaceUri),
    names: Object.keys(all), publish_response: hex(response), data_types: dataTypes(space, index),
  };
  fs.writeFileSync(`${__dirname}/values.json`, JSON.stringify(vectors, null, 1) + "\n");
  await server.shutdown();
  process.exit(0);
})().catch((error) => { console.error(error); process.exit(1); });
