"""Foreign text has no effect in a terminal, a log or a spreadsheet, and keeps all its characters."""

import json
import logging
import sys
import unicodedata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from agent.cli import LazyGroup, main
from agent.cli.run import LINES_MAX, EventFormatter, LineLimit
from agent.cli.table import lines
from agent.errors import BsfgError
from agent.escaping import cell_text, csv_cell, password_text, printable, printable_lines
from agent.replication.protocol.codec import decode_answer, encode_error
from agent.replication.protocol.messages import ErrorAnswer

HOSTILE = "a\x1b[2J\x1b]0;owned\x07\u202egpj.exe\u2066\x9b31m\u2028b\x85\rc\nbsfg: good\x7f\U000e0041"
ESCAPES_ONLY = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

any_text = st.text(st.characters(), max_size=60) | st.text(st.sampled_from(HOSTILE), max_size=30)


def does_something(text: str) -> list[str]:
    """The characters of a text that act on a terminal or reorder what is shown."""
    return [character for character in text if unicodedata.category(character) in ESCAPES_ONLY]


@given(any_text)
def test_printable_text_has_no_control_characters(text: str) -> None:
    """No text leaves a control character, a bidirectional override or a line end. Other text is not changed, and
    escaping twice changes nothing more."""
    shown = printable(text)
    assert does_something(shown) == []
    assert printable(shown) == shown
    if not does_something(text):
        assert shown == text
    assert does_something(printable_lines(text).replace("\n", "")) == []
    assert printable_lines(text).count("\n") == text.count("\n")


@given(st.recursive(any_text, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3)))
def test_json_keeps_its_meaning(value: object) -> None:
    """JSON that was printed and escaped is the same JSON."""
    text = json.dumps(value, ensure_ascii=False)
    assert json.loads(printable(text)) == value


@given(any_text | st.text("=+-@\t\r'1a.,e ", max_size=8))
def test_a_cell_is_no_formula_and_comes_back(text: str) -> None:
    """No cell, except a number, begins with a character that starts a formula; a reader gets the text back."""
    cell = csv_cell(text)
    assert cell_text(cell) == text
    if cell[:1] in set("=+-@\t\r"):
        assert float(cell.replace("Infinity", "inf")) == float(text.replace("Infinity", "inf"))


def test_a_table_of_a_command_is_harmless() -> None:
    """The CSV and the table of `bsfg sql` and `bsfg latest`."""
    (_, row) = lines(("a", "b"), [("=1+1", -5)], "csv")
    assert row == "'=1+1,-5"
    assert not does_something("".join(lines(("a", "b"), [(HOSTILE, 1)], "table")))


@click.command()
def says() -> None:
    """A command that prints what a peer wrote, in all ways in which commands print."""
    click.echo(HOSTILE)
    click.echo(json.dumps({"x": HOSTILE}, ensure_ascii=False), err=True)
    print(HOSTILE)
    logging.StreamHandler().handle(logging.LogRecord("x", 30, "", 0, HOSTILE, (), None))


def test_no_command_prints_control_characters() -> None:
    """All output of a command passes one place: standard output and standard error, logs included."""
    group = LazyGroup("bsfg", lazy={"says": f"{__name__}:says"})
    done = CliRunner().invoke(group, ["says"])
    assert done.exception is None
    assert "bsfg: good" in done.output
    assert does_something(done.output.replace("\n", "")) == []
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("{")]
    assert json.loads(line) == {"x": HOSTILE}


def test_an_error_ends_the_command_without_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of an error is escaped, too."""

    class Wrong(BsfgError):
        hint = HOSTILE

    def bsfg(**_: object) -> None:
        raise Wrong(f"no {HOSTILE}")

    monkeypatch.setattr("agent.cli.bsfg", bsfg)
    monkeypatch.setattr(sys, "argv", ["bsfg"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert "gpj.exe" in str(ended.value)
    assert does_something(str(ended.value).replace("\n", "")) == []


def test_a_log_line_is_one_line() -> None:
    """A field with a peer's text is one line for people and for machines, with nothing in it that acts."""
    record = logging.makeLogRecord({"msg": "page_refused", "reason": HOSTILE})
    for as_json in (False, True):
        assert does_something(EventFormatter(as_json=as_json).format(record)) == []


def test_no_peer_fills_the_log() -> None:
    """The lines a minute of one event about one peer are limited, and the next line counts those left out. Other
    events, other peers, and lines about no peer are not affected."""
    limit = LineLimit()

    def lines(count: int, at_s: float, event: str = "peer_restored", **fields: object) -> list[logging.LogRecord]:
        made = [logging.makeLogRecord({"msg": event, "created": at_s, **fields}) for _ in range(count)]
        return [record for record in made if limit.filter(record)]

    assert len(lines(1000, 0.0, peer="evil")) == LINES_MAX
    assert len(lines(1000, 59.0, peer="evil")) == 0
    assert len(lines(5, 1.0, peer="plant-a")) == len(lines(5, 1.0, "peer_lost", peer="evil")) == 5
    assert len(lines(1000, 1.0, "source_lost", source="press-1")) == 1000
    (first, *_) = lines(5, 61.0, peer="evil")
    assert "left_out=1970" in EventFormatter(as_json=False).format(first)
    assert not hasattr(lines(1, 122.0, peer="evil")[0], "left_out")
    assert len(lines(1000, -1e6, peer="evil")) == LINES_MAX, "the clock was set back"


def test_a_peers_error_is_one_harmless_line() -> None:
    """An error answer's message and hint are cleaned where it is read, before incidents and the status have them."""
    answer, _ = decode_answer(encode_error("evil", "00" * 16, "FetchFacts", "busy", HOSTILE))
    assert isinstance(answer, ErrorAnswer)
    assert does_something(answer.error.message + answer.error.hint) == []
    assert "gpj.exe" in answer.error.message


def test_a_password_from_any_editor() -> None:
    """A byte order mark and a line end are no part of it, blanks are; another encoding is refused by the file's
    name."""
    for data in (b"\xef\xbb\xbf p\xc3\xa4ss \r\n", b" p\xc3\xa4ss \n", b" p\xc3\xa4ss "):
        assert password_text(data, Path("secret")) == " p\u00e4ss "
    for encoding in ("utf-16", "latin-1"):
        with pytest.raises(ValueError, match=r"secret is not text in UTF-8"):
            password_text("p\u00e4ss".encode(encoding), Path("secret"))
