// A machine as vendors model one, for browsing: folders, analog items with a range and a unit, descriptions, a node that
// not everybody may read, names that become equal when they are made plain, and references that lead back up.
"use strict";

const { DataType } = require("node-opcua-variant");

const CELSIUS = { namespaceUri: "http://www.opcfoundation.org/UA/units/un/cefact", unitId: 4408652, displayName: "°C" };

function addTree(plant) {
    const { namespace, addressSpace } = plant;
    const line = namespace.addFolder(addressSpace.rootFolder.objects, { browseName: "Line 1", nodeId: "s=line" });
    for (const number of [1, 2]) {
        const oven = namespace.addObject({
            organizedBy: line,
            browseName: `Oven ${number}`,
            nodeId: `s=oven${number}`,
        });
        namespace.addAnalogDataItem({
            componentOf: oven,
            browseName: "Temperature",
            nodeId: `s=oven${number}.temperature`,
            description: "Air in the chamber,\nat the door",
            dataType: "Double",
            minimumSamplingInterval: 250,
            engineeringUnitsRange: { low: 0, high: 400 },
            engineeringUnits: CELSIUS,
            value: { dataType: DataType.Double, value: 180.5 },
        });
        variable(namespace, oven, "Öffnung", `s=oven${number}.ö`);
        variable(namespace, oven, "Offnung", `s=oven${number}.o`);
        oven.addReference({ referenceType: "Organizes", nodeId: line }); // back up: a loop
    }
    namespace.addMultiStateDiscrete({
        componentOf: line,
        browseName: "Mode",
        nodeId: "s=mode",
        enumStrings: ["Off", "By | hand", "Automatic"],
        value: 1,
    });
    const hidden = variable(namespace, line, "Recipe", "s=recipe");
    hidden.userAccessLevel = hidden.accessLevel = 0;
    variable(namespace, line, "Zeichen", "b=AAH/");
}

function variable(namespace, parent, browseName, nodeId) {
    return namespace.addVariable({
        componentOf: parent,
        browseName,
        nodeId,
        dataType: "Int32",
        minimumSamplingInterval: 100,
        value: { dataType: DataType.Int32, value: 1 },
    });
}

module.exports = { addTree };
