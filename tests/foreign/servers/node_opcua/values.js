// Values between the JSON of the control protocol and node-opcua's variants, and one variable of every data type.
"use strict";

const { coerceInt64, coerceUInt64 } = require("node-opcua-basic-types");
const { DataValue } = require("node-opcua-data-value");
const { coerceNodeId, ExpandedNodeId } = require("node-opcua-nodeid");
const { coerceStatusCode, StatusCodes } = require("node-opcua-status-code");
const { DataType, Variant, VariantArrayType } = require("node-opcua-variant");

// JSON has no number for these.
const FLOATS = { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity, "-0": -0 };
const float = (value) => (typeof value === "string" ? FLOATS[value] : value);

const FROM_JSON = {
    Float: float,
    Double: float,
    Int64: (value) => coerceInt64(String(value)),
    UInt64: (value) => coerceUInt64(String(value)),
    DateTime: (value) => new Date(value),
    ByteString: (value) => Buffer.from(value, "base64"),
    NodeId: coerceNodeId,
    ExpandedNodeId: ({ node_id, namespace_uri, server_index }) => {
        const { identifierType, value, namespace } = coerceNodeId(node_id);
        return new ExpandedNodeId(identifierType, value, namespace, namespace_uri, server_index);
    },
    StatusCode: statusCode,
    Variant: (value) => variant(value.type, value.value),
    DataValue: (value) => new DataValue({ value: variant(value.type, value.value), statusCode: StatusCodes.Good }),
};

/** A status by its number or its name. */
function statusCode(value) {
    if (typeof value === "string" && !(value in StatusCodes)) throw new Error(`no status is called ${value}`);
    return typeof value === "string" ? StatusCodes[value] : coerceStatusCode(value);
}

/** A variant of this data type from a JSON value; an array of values makes an array. */
function variant(type, value) {
    const dataType = type === "Null" ? DataType.Null : DataType[type];
    if (dataType === undefined) throw new Error(`no data type is called ${type}`);
    const from = FROM_JSON[type] ?? ((found) => found);
    const { Array: array, Scalar: scalar } = VariantArrayType; // never detected: an Int64 is an array of two in node-opcua
    if (Array.isArray(value)) return new Variant({ dataType, arrayType: array, value: value.map(from) });
    return new Variant({ dataType, arrayType: scalar, value: value === null ? null : from(value) });
}

// Name, data type, value; the fourth is what else the node needs.
const EVERY_TYPE = [
    ["boolean", "Boolean", true],
    ["sbyte", "SByte", -128],
    ["byte", "Byte", 255],
    ["int16", "Int16", -32768],
    ["uint16", "UInt16", 65535],
    ["int32", "Int32", -2147483648],
    ["uint32", "UInt32", 4294967295],
    ["int64", "Int64", "-9223372036854775808"],
    ["uint64", "UInt64", "18446744073709551615"],
    ["float", "Float", 0.10000000149011612],
    ["double", "Double", 0.1],
    ["string", "String", "Grüße, 水"],
    ["datetime", "DateTime", "2026-03-29T01:00:00.123Z"],
    ["guid", "Guid", "72962B91-FA75-4AE6-8D28-B404DC7DAF63"],
    ["bytestring", "ByteString", "AP8Q"],
    ["xml", "XmlElement", "<a>1</a>"],
    ["nodeid", "NodeId", "ns=1;s=pump"],
    ["expandednodeid", "ExpandedNodeId", { node_id: "s=pump", namespace_uri: "urn:elsewhere", server_index: 1 }],
    ["statuscode", "StatusCode", "BadSensorFailure"],
    ["qualifiedname", "QualifiedName", { namespaceIndex: 1, name: "pump" }],
    ["localizedtext", "LocalizedText", { locale: "de", text: "Pumpe läuft" }],
    ["localizedtext_plain", "LocalizedText", { text: "running" }],
    ["nan", "Double", "NaN"],
    ["infinity", "Double", "-Infinity"],
    ["minus_zero", "Double", "-0"],
    ["string_empty", "String", ""],
    ["string_null", "String", null],
    ["bytestring_empty", "ByteString", ""],
    ["bytestring_null", "ByteString", null],
    ["null", "Null", null],
    ["boolean_array", "Boolean", [true, false]],
    ["int32_array", "Int32", [1, -2, 3]],
    ["int64_array", "Int64", ["1", "-9007199254740993"]],
    ["double_array", "Double", [0.1, "-0", "NaN", "Infinity"]],
    ["double_array_empty", "Double", []],
    ["string_array", "String", ["a", "", "ß"]],
    ["datetime_array", "DateTime", ["2026-01-01T00:00:00Z", "2026-12-31T23:59:59.999Z"]],
    ["bytestring_array", "ByteString", ["AA==", ""]],
    ["localizedtext_array", "LocalizedText", [{ locale: "en", text: "on" }, { locale: "de", text: "an" }]],
    ["variant_array", "Variant", [{ type: "Int32", value: 1 }, { type: "String", value: "two" }]],
];

module.exports = { EVERY_TYPE, statusCode, variant };
