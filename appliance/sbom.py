"""Core: the bill of materials of a package, in CycloneDX 1.6 as JSON.

Equal contents give equal bytes: no time and no random serial number. Debian's own packages (python3, mosquitto) are not
in it, because the gateway brings them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from appliance.packages import OWN, Package, Target


def bill_of_materials(target: Target, packages: Mapping[str, Package], asked: Mapping[str, tuple[str, ...]]) -> str:
    """The document for `target`; `packages` and `asked` (who needs whom) are by canonical name and include bsfg."""
    assert packages.keys() == asked.keys()
    own = packages[OWN]
    body: dict[str, Any] = {
        "metadata": {
            "component": _component(own, "application"),
            "properties": [
                {"name": "bsfg:debian", "value": str(target.debian)},
                {"name": "bsfg:architecture", "value": target.architecture},
            ],
        },
        "components": [_component(package, "library") for name, package in sorted(packages.items()) if name != OWN],
        "dependencies": [
            {"ref": _reference(packages[name]), "dependsOn": [_reference(packages[other]) for other in others]}
            for name, others in sorted(asked.items())
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    head = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
    }
    return json.dumps(head | body, indent=1) + "\n"


def _component(package: Package, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": kind,
        "bom-ref": _reference(package),
        "name": package.name,
        "version": package.version,
        "description": package.summary,
        "hashes": [{"alg": "SHA-256", "content": package.digest}],
        "purl": _reference(package),
    }
    if package.is_expression:
        found["licenses"] = [{"expression": package.licence}]
    elif package.licence:
        found["licenses"] = [{"license": {"name": package.licence}}]
    return found


def _reference(package: Package) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"
