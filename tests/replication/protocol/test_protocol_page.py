"""docs/developers/protocol.md and DESIGN.md agree with the code: error table, worked example, states. Run this file as
a program to write the generated parts again."""

import re
from pathlib import Path

import msgspec
import pytest

from agent.batch import DIGEST_BYTES, Definitions, Link, Origin, seal_samples
from agent.message import TagDefinition
from agent.replication.protocol.codec import decode_answer, decode_request, encode_request
from agent.replication.protocol.errors import ERRORS
from agent.replication.protocol.messages import (
    ANSWERS,
    REQUESTS,
    Confirm,
    FetchAnswer,
    FetchFacts,
    LogPosition,
    operation_of,
)
from agent.replication.pulling.receiving.pull_events import ASKING_TRANSITIONS, STORING_TRANSITIONS
from tests.replication.answers import encode_answer

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/developers/protocol.md"
DESIGN = ROOT / "agent/replication/DESIGN.md"
ORIGIN_LIFE = bytes(range(16))
LIFE = bytes(range(16, 32)).hex()
DEFINITION = TagDefinition(subject="tag:line1/temperature", unit="degC").to_json()


def request() -> bytes:
    """The example's first request."""
    return encode_request(
        FetchFacts(consumer_name="idmz.facts.telemetry", stream="facts.telemetry", limit=65536, wait_ms=2000, trail=[])
    )


def following_request() -> bytes:
    """The example's second request."""
    return encode_request(
        FetchFacts(
            consumer_name="idmz.facts.telemetry",
            stream="facts.telemetry",
            limit=65536,
            wait_ms=2000,
            after=LogPosition(offset=1, life=LIFE),
            confirm=Confirm(last_offset=1, life=LIFE),
        )
    )


def answer() -> bytes:
    """The example's answer, one batch attached."""
    definitions = Definitions().extended(DEFINITION)
    link = Link("facts.telemetry", Origin("plant-a", ORIGIN_LIFE))
    sealed = seal_samples(link, [(1, 1_700_000_000_000_000_000, 21.5, 0)], definitions).sealed
    page = FetchAnswer(
        store_zone="plant-a",
        stream="facts.telemetry",
        frontier=0,
        end_offset=1,
        batches=[(1, 1, len(sealed))],
        life=LIFE,
        lives=[LogPosition(offset=1, life=LIFE, digest=sealed[-DIGEST_BYTES:].hex())],
    )
    return encode_answer(page, [sealed])


def shown(message: bytes) -> str:
    """The length of the header in hex, the header, and the attachment in lines of 56 bytes in hex."""
    end = 4 + int.from_bytes(message[:4], "little")
    attached = [message[at : at + 56].hex() for at in range(end, len(message), 56)]
    return "\n".join([message[:4].hex(), message[4:end].decode(), *attached])


def generated() -> dict[str, str]:
    """The generated parts of the page, by the comment before each."""
    rows = "\n".join(f"- `{row.code}`{' (retry)' if row.retryable else ''}: {row.meaning}" for row in ERRORS.values())
    return {
        "errors: from agent/replication/protocol/errors.py": rows,
        "example: request": f"```json\n{request().decode()}\n```",
        "example: answer": f"```text\n{shown(answer())}\n```",
        "example: next": f"```json\n{following_request().decode()}\n```",
    }


def written(page: str) -> str:
    """The page with its generated parts."""
    for name, text in generated().items():
        pattern = rf"(<!-- {re.escape(name)} -->\n)\n?(?:(?:- [^\n]*\n)+|```.*?\n```\n)?\n*"
        page, found = re.subn(pattern, lambda match, text=text: match[1] + "\n" + text + "\n\n", page, flags=re.DOTALL)
        assert found == 1, name
    return page.rstrip() + "\n"


def test_the_page_shows_the_error_table_and_bytes_of_the_code() -> None:
    """The error table and the example's bytes on the page are those of the code."""
    page = PAGE.read_text("utf-8")
    assert page == written(page), "run: python -m tests.replication.protocol.test_protocol_page"


@pytest.mark.parametrize("message", [*REQUESTS, *ANSWERS], ids=lambda message: message.__name__)
def test_every_operation_and_field_is_described(message: type[msgspec.Struct]) -> None:
    """The page names every operation and field of the messages."""
    page = PAGE.read_text("utf-8")
    assert re.search(rf"^(### .*|\| `){operation_of(message)}\b", page, re.MULTILINE)
    missing = [field.name for field in msgspec.structs.fields(message) if f"`{field.name}`" not in page]
    assert not missing


def test_example_is_read() -> None:
    """The decoders accept the example of the page."""
    assert isinstance(decode_request(request()), FetchFacts)
    assert isinstance(decode_request(following_request()), FetchFacts)
    length, header, *attached = shown(answer()).splitlines()
    decoded, batches = decode_answer(bytes.fromhex(length) + header.encode() + bytes.fromhex("".join(attached)))
    assert isinstance(decoded, FetchAnswer)
    assert len(batches) == 1


def test_states_are_drawn_from_the_tables() -> None:
    """The diagram in DESIGN.md has exactly the transitions of the two tables."""
    drawn = set(re.findall(r"^ +([A-Z]+) --> ([A-Z]+)$", DESIGN.read_text("utf-8"), re.MULTILINE))
    tables = {
        (source.name, target.name)
        for table in (ASKING_TRANSITIONS, STORING_TRANSITIONS)
        for source, targets in table.items()
        for target in targets
    }
    assert drawn == tables


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
