"""The tags in a JSON export of Ignition 8.x, with UDT instances expanded.

A UDT has members, which may be folders and instances of other UDTs, and parameters. Settings, parameters and members
are merged along the chain of types and along the instances around a member. References such as `{Unit}`, `{Base+2}` or
`{Base*10|0000}` are replaced by values. A tag with a reference whose value the file does not say gets the reason
instead of its settings, because a path with a wrong value would read another register. Core.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from agent.ingest.errors import TagFileProblem, TagMapError
from agent.ingest.tags.foreign.translation import NotTranslated
from agent.ingest.tags.sheet import ROWS_MAX

DEPTH_MAX = 20  # folders in folders, and UDTs in UDTs
NODES_MAX = 2 * ROWS_MAX  # folders and tags with all UDTs expanded; UDTs in UDTs multiply
TEXT_MAX = 4_096  # characters of a setting with its parameters filled in
# {Unit}, {Base+2}, {Base*10|0000}; no GUID, which may be part of a node id
REFERENCE = re.compile(r"\{(?![0-9A-Fa-f]{8}-)(?P<term>[^{}|]*)(?:\|(?P<format>[^{}]*))?\}")
NAME, NUMBER = re.compile(r"[^\W\d][\w .]*"), re.compile(r"[+-]?[0-9]{1,9}")
SUM, LEADING_ZEROS = re.compile(r"(?:[-+*/%() ]|\b[0-9]{1,9}\b)*"), re.compile(r"\b0+(?=[0-9])")
TERM_CHARACTERS_MAX = 80  # limits the nesting of parentheses
OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
WHOLE_TYPES = {"byte", "short", "integer", "long", "int1", "int2", "int4", "int8"}
SETTINGS = (
    *("valueSource", "enabled", "opcServer", "opcItemPath", "engUnit", "documentation", "tooltip"),
    *("scaleMode", "rawLow", "rawHigh", "scaledLow", "scaledHigh", "clampMode", "deadband", "deadbandMode"),
    *("engLow", "engHigh"),
)
TEXTS = {"engUnit", "documentation", "tooltip"}  # a reference without a value in them makes no wrong value


class IgnitionExport:
    """The tags of a JSON export."""

    def __init__(self, file: str, root: object, types: object = None) -> None:
        """`root` is the export, `types` that of the UDT definitions if these are in another file."""
        self.has_tags = False
        self._file, self._nodes = file, 0
        self._root = _provider(root)
        self._types: dict[str, dict[str, Any]] = {}
        self._definitions: dict[str, dict[str, Any]] = {}  # with what they inherit
        self._collect_types(_provider(types), "", 0)
        self._collect_types(self._root, "", 0)

    def tags(self) -> Iterator[tuple[str, Mapping[str, str] | str]]:
        """(path and name, settings by name in lower case or the reason why there are none)."""
        yield from self._walk(self._root, "", {}, 0)

    def _collect_types(self, node: object, path: str, depth: int) -> None:
        for tag in _members(node) if depth <= DEPTH_MAX else ():
            name = str(tag.get("name", ""))
            here = f"{path}/{name}" if path else name
            if tag.get("tagType") == "UdtType":
                self._types[_type_name(here)] = tag
            else:
                self._collect_types(tag, here, depth + 1)

    def _walk(
        self, node: object, path: str, parameters: Mapping[str, str], depth: int
    ) -> Iterator[tuple[str, Mapping[str, str] | str]]:
        if depth > DEPTH_MAX:
            yield path, f"is nested deeper than {DEPTH_MAX} levels"
            return
        for tag in _members(node):
            self.has_tags = True
            self._nodes += 1
            if self._nodes > NODES_MAX:
                raise TagMapError(
                    [TagFileProblem(self._file, 0, "", "", f"is more than {NODES_MAX} tags with all UDTs")]
                )
            name = str(tag.get("name", ""))
            here = f"{path}/{name}" if path else name
            kind = tag.get("tagType", "Folder" if "tags" in tag else "AtomicTag")
            if kind == "UdtType" or name == "_types_":
                continue
            try:
                if kind == "UdtInstance":
                    yield from self._instance(tag, here, parameters, depth)
                elif kind in {"Folder", "Provider"}:
                    yield from self._walk(tag, here, parameters, depth + 1)
                else:
                    yield here, _settings(tag, {**parameters, "TagName": name})
            except NotTranslated as error:
                yield here, str(error)

    def _instance(
        self, tag: dict[str, Any], path: str, outer: Mapping[str, str], depth: int
    ) -> Iterator[tuple[str, Mapping[str, str] | str]]:
        definition = self._definition(str(tag.get("typeId") or ""))
        merged = _merged(definition, tag)
        scope = _scope(tag, merged, outer, path.rpartition("/")[2])
        if _settings({"enabled": merged.get("enabled", True)}, scope)["enabled"].lower() == "false":
            yield path, "is disabled"
            return
        yield from self._walk(merged, path, scope, depth + 1)

    def _definition(self, name: str) -> dict[str, Any]:
        """A type with all that it inherits. Raises NotTranslated."""
        if name in self._definitions:
            return self._definitions[name]
        start, chain = name, list[dict[str, Any]]()
        while name:
            known = self._types.get(_type_name(name))
            if known is None:
                why = f"is a UDT instance of {name}, which is not in this file; give the export of the types as --types"
                raise NotTranslated(why)
            if len(chain) > DEPTH_MAX:
                raise NotTranslated(f"its type {name} inherits from more than {DEPTH_MAX} types, or from itself")
            chain.append(known)
            name = str(known.get("typeId") or "")
        definition: dict[str, Any] = {}
        for known in reversed(chain):
            definition = _merged(definition, known)
        self._definitions[start] = definition
        return definition


def _provider(root: object) -> object:
    """An export as that of a provider: a list of tags, a single tag or a folder, whose name is part of the names in it,
    becomes its content."""
    if isinstance(root, list):
        return {"tags": root}
    if not isinstance(root, dict) or "name" not in root:
        return root
    is_part = "tags" not in root or root.get("tagType") in {"Folder", "UdtInstance", "UdtType"}
    return {"tags": [root]} if is_part else root


def _type_name(text: str) -> str:
    """The path of a type below the folder of types, as instances may write it with their provider."""
    return re.sub(r"^\[[^\]]*\]", "", text).removeprefix("_types_/")


def _members(node: object) -> list[dict[str, Any]]:
    tags = node.get("tags") if isinstance(node, dict) else None
    return [tag for tag in tags if isinstance(tag, dict)] if isinstance(tags, list) else []


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """A tag with its overrides: settings by name, parameters by name and property, members by name and in the same way.
    An instance mentions only what differs from its type, at any depth."""
    found = {**base, **over}
    members = {str(tag.get("name")): tag for tag in _members(base)}
    for tag in _members(over):
        name = str(tag.get("name"))
        members[name] = _merged(members[name], tag) if name in members else tag
    if members:
        found["tags"] = list(members.values())
    parameters = _parameters(base)
    for name, own in _parameters(over).items():
        parameters[name] = {**parameters.get(name, {}), **own}
    if parameters:
        found["parameters"] = parameters
    return found


def _parameters(tag: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The parameters of a type or an instance, each as its properties."""
    found = tag.get("parameters")
    if not isinstance(found, dict):
        return {}
    is_plain = {name: not isinstance(own, dict) or "binding" in own for name, own in found.items()}
    return {name: {"value": own} if is_plain[name] else own for name, own in found.items()}


def _scope(instance: dict[str, Any], merged: dict[str, Any], outer: Mapping[str, str], name: str) -> dict[str, str]:
    """The values of parameters inside an instance. What the instance sets refers to the parameters around it, the
    defaults of its type to those of the type."""
    scope = {**outer, "InstanceName": name, "RootInstanceName": outer.get("RootInstanceName", name)}
    if "InstanceName" in outer:
        scope["ParentInstanceName"] = outer["InstanceName"]
    around, waiting = dict(scope), _parameters(merged)
    for key in waiting:
        scope.pop(key, None)  # a parameter without a value hides that of the same name around it
    for key, parameter in _parameters(instance).items():
        if "value" in parameter:
            value = _parameter_value(waiting.pop(key), around)
            scope |= {} if value is None else {key: value}
    for _ in range(DEPTH_MAX):  # a default may refer to other defaults
        found = {key: value for key in waiting if (value := _parameter_value(waiting[key], scope)) is not None}
        if not found:
            break
        scope |= found
        waiting = {key: parameter for key, parameter in waiting.items() if key not in found}
    return scope


def _parameter_value(parameter: dict[str, Any], scope: Mapping[str, str]) -> str | None:
    """The value of a parameter, None if the file does not say it."""
    if parameter.get("value") is None:
        return None
    is_whole = str(parameter.get("dataType", "")).lower() in WHOLE_TYPES
    try:
        text = _filled(_value(parameter["value"]), scope)
    except NotTranslated:
        return None
    if is_whole and re.fullmatch(r"-?[0-9]+\.0", text):
        text = text[:-2]  # JSON has one type of number: 7.0 is unit 7, not bit 0 of register 7
    if REFERENCE.search(text) or (is_whole and not re.fullmatch(r"[+-]?[0-9]+", text)):
        return None
    return text


def _value(found: object) -> str:
    """A setting as text: plain, or {"value": ...}, or a binding with parameters in it. Raises NotTranslated for what
    only the product can compute."""
    if isinstance(found, dict):
        bind_type = str(found.get("bindType", "parameter")).lower()
        if bind_type not in {"parameter", "udtparameter"}:
            raise NotTranslated(f"is bound to an {bind_type}, which only Ignition can evaluate")
        return _value(found.get("binding", found.get("value", "")))
    if isinstance(found, str | int | float):
        return str(found).lower() if isinstance(found, bool) else str(found)
    return ""


def _settings(tag: dict[str, Any], parameters: Mapping[str, str]) -> Mapping[str, str]:
    """The settings of a tag by name in lower case. Raises NotTranslated."""
    settings = {}
    for name in SETTINGS:
        if name not in tag:
            continue
        try:
            text = _filled(_value(tag[name]), parameters)
        except NotTranslated as error:
            if name in TEXTS:
                continue
            raise NotTranslated(f"its {name} {error}") from error
        if name not in TEXTS and REFERENCE.search(text):
            raise NotTranslated(f"its {name} {text!r} has a parameter without a value")
        settings[name.lower()] = text
    return settings


def _filled(text: str, parameters: Mapping[str, str]) -> str:
    """A text with its references replaced by the values of parameters. What cannot be computed stays."""

    def value(match: re.Match[str]) -> str:
        known = parameters.get(match["term"].strip())
        try:
            if known is None or match["format"] is not None:
                known = str(_term(match["term"], parameters))
            return known if match["format"] is None else _formatted(int(known), match["format"])
        except (ValueError, ZeroDivisionError):
            return match[0]

    if len(text) > TEXT_MAX:
        return text[:TEXT_MAX]
    filled = REFERENCE.sub(value, text)
    return filled if len(filled) <= TEXT_MAX else text


def _formatted(number: int, pattern: str) -> str:
    """A number in a pattern such as 000 or ##0: each 0 is a digit that is always there. Raises ValueError for
    others."""
    if not re.fullmatch(r"#*0{1,20}", pattern):
        raise ValueError(pattern)
    return ("-" if number < 0 else "") + str(abs(number)).zfill(pattern.count("0"))


def _term(text: str, parameters: Mapping[str, str]) -> int:
    """The value of whole numbers and parameters with + - * / % and parentheses. Raises ValueError for anything else."""

    def number(name: re.Match[str]) -> str:
        found = parameters.get(name[0].strip(), "")
        # In parentheses, so that a digit before the name is an error and not the first digit of the number.
        return f"({found})" if NUMBER.fullmatch(found) else "none"

    plain = NAME.sub(number, text).strip()
    if len(plain) > TERM_CHARACTERS_MAX or not SUM.fullmatch(plain):
        raise ValueError(text)
    try:
        found = _value_of(ast.parse(LEADING_ZEROS.sub("", plain), mode="eval").body)
    except SyntaxError as error:
        raise ValueError(text) from error
    if found.denominator != 1:
        raise ValueError(text)
    return found.numerator


def _value_of(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            return -_value_of(operand) if isinstance(sign, ast.USub) else _value_of(operand)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in OPERATIONS:
            return OPERATIONS[type(operation)](_value_of(left), _value_of(right))
        case _:
            raise ValueError(ast.unparse(node))
