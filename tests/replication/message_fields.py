"""The integers in a message type: their places and limits. A field that is added later needs no change in the tests."""

from collections.abc import Iterator
from typing import Any

import msgspec

Place = tuple[str | int, ...]
ORIGIN = f"plant-a/{'0' * 32}"
"""The key of every mapping in a message: origins."""


def integers(kind: Any, place: Place = ()) -> Iterator[tuple[Place, msgspec.inspect.IntType]]:
    """The integers in a message type, each with its place; for a list, those of its first element."""
    match kind:
        case msgspec.inspect.IntType():
            yield place, kind
        case msgspec.inspect.UnionType(types=types):
            for member in types:
                yield from integers(member, place)
        case msgspec.inspect.StructType(fields=fields) | msgspec.inspect.DataclassType(fields=fields):
            for field in fields:
                yield from integers(field.type, (*place, field.encode_name))
        case msgspec.inspect.ListType(item_type=item):
            yield from integers(item, (*place, 0))
        case msgspec.inspect.TupleType(item_types=items):
            for at, item in enumerate(items):
                yield from integers(item, (*place, at))
        case msgspec.inspect.DictType(value_type=value):
            yield from integers(value, (*place, ORIGIN))
