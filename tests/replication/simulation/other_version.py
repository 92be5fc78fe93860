"""Messages as a newer program would write them: with a higher version and unknown fields."""

from __future__ import annotations

import struct

from agent.signing.messages import MessagePlace, sign_answer, split_answer
from agent.signing.records import RecordSigner

_LENGTH = struct.Struct("<I")
_VERSION = b'"version":"1.0",'
_MINOR = b'"version":"1.7","x_new":{"deep":[1,{"er":null}]},'
_MAJOR = b'"version":"2.0",'


def request_of(version: str, payload: bytes) -> bytes:
    """A request as a node of this version sends it: "same", "minor" or "major"."""
    match version:
        case "minor":
            return payload.replace(_VERSION, _MINOR, 1)
        case "major":
            return payload.replace(_VERSION, _MAJOR, 1)
    return payload


def answer_of(version: str, payload: bytes, signer: RecordSigner, place: MessagePlace) -> bytes:
    """An answer as a node of this version sends it, signed if it was."""
    if version == "same":
        return payload
    payload, proof = split_answer(payload)
    end = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
    header = request_of(version, payload[_LENGTH.size : end])
    if version == "minor":
        header = header.replace(b'{"zone":', b'{"x_new":[],"zone":').replace(b'"error":{', b'"error":{"x_new":0,')
    answer = _LENGTH.pack(len(header)) + header + payload[end:]
    return answer if proof is None else sign_answer(signer, place, answer)
