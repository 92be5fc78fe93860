"""The face: what a person types, what comes back, and with which exit status."""

import io
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.cli import bsfg as command_group
from agent.cli.facts import fetch
from agent.cli.facts.fetch import tail
from agent.cli.run import FILES_MAX
from agent.cli.terminal import PrintableStream
from agent.client import Client
from agent.client.opened import FetchedPage
from agent.fact_store import FactStore, StoreReader
from tests.cli.conftest import Bsfg, typed
from tests.support import command
from tests.support.page import shown
from tests.waiting import LIMIT_S


@pytest.fixture
def node(bsfg: Bsfg) -> Bsfg:
    """The same, with a node.toml made."""
    assert bsfg("init", "--zone", "plant-a").returncode == 0
    return bsfg


def test_init_writes_what_check_accepts(tmp_path: Path) -> None:
    """A new user's first two commands succeed, each in a process of its own."""
    assert command.process(tmp_path, "init", "--zone", "plant-a").returncode == 0
    done = command.process(tmp_path, "check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("node.toml: good; zone plant-a")


def test_init_overwrites_a_file_only_with_force(node: Bsfg, tmp_path: Path) -> None:
    """A second init leaves the operator's file as it is, and says how to replace it."""
    (tmp_path / "node.toml").write_text("edited")
    done = node("init", "--zone", "plant-b")
    assert (done.returncode, (tmp_path / "node.toml").read_text()) == (1, "edited")
    assert "--force" in done.stderr


def test_bad_usage_exits_with_status_2(bsfg: Bsfg) -> None:
    """An unknown command, a bad zone, a missing argument and a number that is none are usage errors, told on standard
    error."""
    wrong = (("fetsh",), ("init", "--zone", "Plant A"), ("confirm", "--consumer", "x"), ("latest", "--fresh-s", "nan"),
             ("broker", "sessions", "--seconds", "1e400"), ("broker", "check", "--zone", "a", "--host", "b:8883"),
             ("broker", "config", "a", "--link", "a:b", "--host", "[::1]"))  # fmt: skip
    for arguments in wrong:
        done = bsfg(*arguments)
        assert done.returncode == 2, arguments
        assert "Error" in done.stderr


def test_a_missing_config_names_the_command_that_makes_one(bsfg: Bsfg) -> None:
    """Any command without a node.toml ends with the command that makes one."""
    for arguments in (("run",), ("status",), ("tail",), ("append", "a:b", "c", "{}")):
        done = bsfg(*arguments)
        assert done.returncode == 1
        assert "bsfg init" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments, why",
    [
        (("append", "B 1", "done", "{}"), "; for example batch:B-1042"),
        (("append", "batch:1", "Done", "{}"), "; for example step_completed"),
        (("append", "batch:1", "done", "{"), "object_json"),
        (("append", "batch:1", "done", '{"a":NaN}'), "NaN"),
        (("append", "batch:1", "done", '{"a":1,"a":2}'), "twice"),
        (("append", "--stream", "Facts", "batch:1", "done", "{}"), "stream"),
        (("confirm", "--consumer", "nobody", "1"), "nobody"),
        (("status",), "bsfg run"),
        (("source", "retry", "press-1"), "no node runs here"),
        (("opcua", "backfill", "press-1", "--from", "1h"), "no node runs here"),
        (("tail", "--config", "elsewhere.toml"), "elsewhere.toml"),
        (("hardware", "check", "x" * 300), "no gateway profile is called xxx"),
        (("hardware", "check", "binary"), "binary: is not UTF-8"),
        (("opcua", "trust", "x" * 300), "is no thumbprint"),
        (("opcua", "trust", "/proc/self/mem"), "/proc/self/mem cannot be read: "),
        (("append", "batch:1", "done", '{"a":"\udcfc"}'), "udcfc\"}' is not text in UTF-8"),
        (("consumer", "remove", "\udcfc"), "udcfc' is not text in UTF-8"),
    ],
)
def test_a_refusal_names_the_thing(node: Bsfg, tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    """What cannot be done ends with status 1 and a sentence, never with a traceback."""
    (tmp_path / "binary").write_bytes(b"\xff")
    done = node(*arguments)
    assert done.returncode == 1
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_goes_through_the_log_page_by_page(node: Bsfg) -> None:
    """fetch gives the same until it is confirmed, then goes on; nothing new is an empty answer and status 0."""
    for number in range(5):
        node("append", f"batch:{number}", "done", "{}")

    def offsets(limit: int) -> list[int]:
        done = node("fetch", "--consumer", "local.mes", "--limit", str(limit))
        assert done.returncode == 0, done.stderr
        return [json.loads(line)["offset"] for line in done.stdout.splitlines()]

    assert offsets(2) == [1, 2]
    assert offsets(3) == [1, 2, 3]
    assert json.loads(node("confirm", "--consumer", "local.mes", "3", "--json").stdout) == {"cursor_advanced_to": 3}
    assert offsets(10) == [4, 5]
    node("confirm", "--consumer", "local.mes", "5")
    assert offsets(10) == []


def test_a_long_fetch_is_read_in_pages(node: Bsfg, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch of many facts has no more in memory than a page."""
    for number in range(5):
        node("append", f"batch:{number}", "done", "{}")
    asked, fetch_page = list[int](), Client.fetch

    def noted(self: Client, consumer: str, stream: str, **more: Any) -> FetchedPage:
        asked.append(more["limit"])
        return fetch_page(self, consumer, stream, **more)

    monkeypatch.setattr(Client, "fetch", noted)
    monkeypatch.setattr(fetch, "PAGE_FACTS", 2)
    printed = node("fetch", "--consumer", "local.mes", "--limit", "5").stdout.splitlines()
    assert [json.loads(line)["offset"] for line in printed] == [1, 2, 3, 4, 5]
    assert asked == [2, 2, 1]


def test_a_consumer_may_start_at_the_end(node: Bsfg) -> None:
    """`--start end` skips what is there, and only the first registration decides."""
    node("append", "batch:1", "done", "{}")
    assert node("fetch", "--consumer", "local.late", "--start", "end").stdout == ""
    node("append", "batch:2", "done", "{}")
    assert json.loads(node("fetch", "--consumer", "local.late").stdout)["offset"] == 2


def test_a_lease_from_the_command_line_fences(node: Bsfg) -> None:
    """`bsfg lease` prints the next life; an append with an older one stores nothing, names the life in force, and
    fails."""
    assert node("lease", "mes").stdout == "1\n"
    assert json.loads(node("lease", "mes", "--json").stdout) == {"lease_epoch": 2}
    fenced = node("append", "--producer", "mes", "--lease-epoch", "1", "batch:1", "done", "{}")
    assert (fenced.returncode, fenced.stdout[:49]) == (1, "rejected_fenced: lease epoch 2 of mes is in force")
    done = node("append", "--producer", "mes", "--lease-epoch", "2", "batch:1", "done", "{}", "--json")
    assert json.loads(done.stdout)["outcome"] == "applied"
    refused = node("append", "--base-offset", "0", "batch:2", "done", "{}")
    assert (refused.returncode, "write_class" in refused.stderr) == (1, True)


def test_append_warns_when_a_fact_has_no_copy_yet(node: Bsfg, tmp_path: Path) -> None:
    """With acks all and no consumer in sync the fact is stored, the outcome is `queued`, the status 0, and a warning
    goes to a terminal but not into a pipe."""
    with (tmp_path / "node.toml").open("a") as config:  # the default timeout is 5 s
        config.write('[[stream]]\nname = "facts.operational"\nacks_timeout_ms = 200\n')
    done = node("append", "--acks", "all", "batch:1", "done", "{}", "--json")
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert (told["offset"], told["outcome"]) == (1, "queued")
    assert told["warning"] in done.stderr
    assert "bsfg: warning: after 0.2 s 0 of the 1 consumers" in done.stderr
    assert json.loads(node("tail", "--stream", "facts.operational").stdout)["offset"] == 1
    assert "warning" not in json.loads(node("append", "batch:1", "done", "{}", "--json").stdout)


def test_append_to_an_unknown_stream_names_the_known_ones(node: Bsfg, tmp_path: Path) -> None:
    """A misspelt stream is refused and not begun, also without a node; --new-stream or node.toml begins one."""
    assert node("append", "batch:1", "done", "{}").returncode == 0
    misspelt = node("append", "--stream", "facts.operationl", "batch:1", "done", "{}")
    assert (misspelt.returncode, misspelt.stdout) == (1, "")
    assert (
        "there is no stream 'facts.operationl'; there are: facts.operational; to begin it: --new-stream"
        in misspelt.stderr
    )
    assert node("append", "--stream", "facts.orders", "--new-stream", "batch:1", "done", "{}").returncode == 0
    assert node("append", "--stream", "facts.orders", "batch:2", "done", "{}").returncode == 0
    with (tmp_path / "node.toml").open("a") as file:
        file.write('\n[[stream]]\nname = "facts.lab"\n[[broker]]\nname = "b"\nhost = "b"\n')
        file.write("".join(f'{name}_file = "none.pem"\n' for name in ("ca", "cert", "key")))
        for zone in ("idmz", "mes"):
            file.write(f'[[peer]]\nzone = "{zone}"\nbroker = "b"\nexports = ["facts.{zone}"]\n')
    for stream in ("facts.lab", "facts.idmz", "facts.mes"):
        assert node("append", "--stream", stream, "batch:1", "done", "{}").returncode == 0
    assert "facts.operationl" not in node("store", "stats").stdout


@pytest.mark.parametrize(
    "words, named",
    [
        (
            ("append", "--to", "idmz", "--new-stream", "batch:1", "done", "{}"),
            "--new-stream begins a stream of this node",
        ),
        (("latest", "--from", "idmz", "--depth", "9", "*"), "--depth is for a store of this machine"),
        (("modbus", "read", "[::1]", "--base", "0", "--baud-rate", "9600", "1"), "a serial port, not for [::1]:502"),
    ],
    ids=("append", "latest", "modbus"),
)
def test_an_option_without_effect_is_wrong_usage(node: Bsfg, words: tuple[str, ...], named: str) -> None:
    """It is named, with what it is for, before anything is done."""
    done = node(*words)
    assert (done.returncode, named in done.stderr) == (2, True), done.stderr


def test_the_line_of_a_user_is_all_that_is_printed() -> None:
    """Its password may come from a pipe, and the line goes into a file."""
    done = CliRunner().invoke(command_group, ["page", "--add-user", "ann"], input="secret\nsecret\n")
    assert done.stdout.startswith("ann:")
    assert done.stdout.count("\n") == 1


def test_ctrl_c_ends_a_command_as_its_signal_does(tmp_path: Path) -> None:
    """A shell then ends the loop around it; it prints nothing."""
    os.mkfifo(tmp_path / "node.toml")
    words = ["env", "--default-signal=INT", *command.words("status", "--config", "node.toml")]
    with (
        subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process,
        (tmp_path / "node.toml").open("wb"),  # returns when the command reads the file
    ):
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, printed) == (-signal.SIGINT, b"")


def test_tail_of_an_unknown_stream_names_the_known_ones(node: Bsfg) -> None:
    """A misspelt stream is an error that names the streams there are; a known one prints facts only."""
    assert node("append", "batch:1", "done", "{}").returncode == 0
    misspelt = node("tail", "--stream", "facts.operationl")
    assert (misspelt.returncode, misspelt.stdout) == (1, "")
    assert misspelt.stderr == "bsfg: there is no stream 'facts.operationl'; there are: facts.operational\n"
    assert node("tail", "--stream", "facts.operational").stderr == ""


def test_tail_ends_where_the_stream_ended_when_it_began(
    node: Bsfg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is written to faster than it is printed gives the facts that were asked for, not all that come."""
    for number in range(8):
        assert node("append", f"batch:{number}", "done", "{}").returncode == 0
    monkeypatch.setattr(StoreReader, "end_offset", lambda *_: 5)  # three facts came after the command had looked
    arguments = ["--config", str(tmp_path / "node.toml"), "--stream", "facts.operational", "--limit", "2"]
    printed = CliRunner().invoke(tail, arguments)
    assert [json.loads(line)["offset"] for line in printed.stdout.splitlines()] == [4, 5]


def test_a_command_that_a_gateway_cannot_run(bsfg: Bsfg, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain install has no Spark: the message says what to install, and there
    is no traceback. A module of ours that is missing is our mistake, and has one."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = bsfg("demo")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("bsfg: the package pyarrow is not installed")
    assert "pip install pyspark pyarrow" in done.stderr
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "agent.demo.scenario", None)
    with pytest.raises(ModuleNotFoundError):
        bsfg("demo")


@pytest.mark.parametrize(
    "words",
    [
        ("init", "--zone", "plant-b", "--config", "full/b/node.toml"),
        ("diag", "--yes", "--out", "full/diag.tar.gz"),
        ("tags", "import", "--from", "kepware", "list.csv", "--out", "full/tags.csv"),
    ],
)
def test_a_file_that_cannot_be_written_is_named(node: Bsfg, tmp_path: Path, words: tuple[str, ...]) -> None:
    """With the system's reason and what to look at, whatever the command writes; here the folder is a file."""
    (tmp_path / "full").touch()
    (tmp_path / "list.csv").write_text("Tag Name,Address,Data Type\nt,40001,Word\n")
    done = node(*words)
    assert done.returncode == 1
    assert f"{words[-1]} cannot be written: " in done.stderr
    assert done.stderr.endswith("look at the rights of its folder, and at the free space\n")


@pytest.mark.parametrize(
    "words",
    [
        ("init", "--zone", "plant-b", "--force"),
        ("diag", "--yes", "--out", "new.tar.gz"),
        ("tags", "import", "--from", "kepware", "list.csv", "--out", "tags.csv"),
    ],
)
def test_a_file_is_written_as_a_whole(node: Bsfg, tmp_path: Path, words: tuple[str, ...]) -> None:
    """On a disk that is full in the middle: the file before stays as it was, and no part of a new one is left."""
    assert node("append", "batch:1", "done", "{}").returncode == 0
    (tmp_path / "list.csv").write_text(
        "Tag Name,Address,Data Type\n" + "".join(f"t{n},{n},Word\n" for n in range(400001, 401000))
    )
    (tmp_path / "tags.csv").write_text("in force")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    line = shlex.join(command.words(*words))
    done = subprocess.run(
        ["sh", "-c", f"ulimit -f 1; exec {line}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, "cannot be written: File too large" in done.stderr) == (1, True), done.stderr
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before


def test_streams_that_take_no_text(node: Bsfg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard streams that are closed, as in a line for cron, stop no command; a full disk there is named; a reader
    that has enough is no error; a character that the locale lacks is escaped."""

    def typed_in(words: tuple[str, ...], redirected: str = "") -> "subprocess.CompletedProcess[str]":
        line = f"{shlex.join(command.words(*words))} {redirected}"
        shell = ["sh", "-c", line]
        return subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    assert node("append", "batch:1", "done", '{"a":"\u03a9u"}').returncode == 0
    done = typed_in(("store", "export", "--format", "csv", "out.csv"), "<&- >&- 2>&-")
    assert (done.returncode, len((tmp_path / "out.csv").read_text().splitlines())) == (0, 2)
    for words in (("hardware", "list"), ("tags", "template", "modbus")):
        done = typed_in(words, ">/dev/full")
        full = "bsfg: standard output cannot be written: No space left on device; look at the free space there\n"
        assert (done.returncode, done.stderr) == (1, full)
    for redirected, printed in (("| head -c 1", "{"), (">out.jsonl && tail -c 12 out.jsonl", '\\u03a9u"}}}\n')):
        done = typed_in(("tail", "--stream", "facts.operational"), redirected)
        assert (done.stdout, done.stderr) == (printed, "")


def test_what_was_meant_is_named(node: Bsfg) -> None:
    """A command of another group or a misspelt one; what a name looks like, in words."""
    for word, meant in (("export", "'store export'"), ("latst", "'latest'"), ("scan", "'modbus scan'")):
        done = node(word)
        assert (done.returncode, f"No such command {word!r}. Did you mean {meant}?" in done.stderr) == (2, True), done
    assert "No such command 'zzz'.\n" in node("zzz").stderr
    done = node("append", "batch", "done", "{}")
    assert done.returncode == 1
    assert done.stderr.endswith(
        "subject: 'batch' must be kind:id or kind:scope/id in printable ASCII without spaces, with a kind of a-z, 0-9 and "
        "_; for example batch:B-1042; correct the field that the message names\n"
    )


def test_fetch_of_an_unknown_stream_warns(node: Bsfg) -> None:
    """A reader may come before the first fact; the warning names the stream and the command that removes the
    consumer."""
    assert node("append", "batch:1", "done", "{}").returncode == 0
    misspelt = node("fetch", "--stream", "facts.operationl", "--consumer", "local.mes")
    assert (misspelt.returncode, misspelt.stdout) == (0, "")
    assert "no stream 'facts.operationl' yet; there are: facts.operational; consumer local.mes waits" in misspelt.stderr
    assert node("consumer", "remove", "local.mes", "--force", "--now").returncode == 0
    assert node("fetch", "--stream", "facts.operational", "--consumer", "local.mes").stderr == ""
    added = node("consumer", "add", "local.lims", "--stream", "facts.operationl")
    assert (added.returncode, added.stdout) == (0, "local.lims reads facts.operationl from offset 1\n")
    assert (
        "yet; there are: facts.operational; consumer local.lims waits for its first fact (bsfg consumer" in added.stderr
    )
    assert node("consumer", "add", "local.erp", "--stream", "facts.operational").stderr == ""


def test_what_a_command_finds_in_the_store_is_told_with_its_reason(node: Bsfg, tmp_path: Path) -> None:
    """Without a node the command opens the store itself, and its log is the terminal: a store that was set aside is
    named with its new file and the reason, in a process of its own, where no test handles the log."""
    assert node("append", "order:line1/1", "order_released", "{}").returncode == 0
    (tmp_path / "state/facts.db").write_bytes(b"no database" * 500)
    done = command.process(tmp_path, "append", "order:line1/2", "order_released", "{}")
    assert done.returncode == 0
    (line,) = [line for line in done.stderr.splitlines() if "store_quarantined" in line]
    assert "as=facts.db.damaged-" in line
    assert "reason=" in line


def test_an_interpreter_without_asserts_is_refused(tmp_path: Path) -> None:
    """-O would remove the checks the product relies on."""
    done = command.process(tmp_path, "check", python=("-O",))
    assert done.returncode == 1
    assert "-O" in done.stderr


def test_hardware_check_answers_in_hours() -> None:
    """A profile and a rate give hours and years, which depend on each option; an impossible rate is a bad result that
    says why."""
    profile = "siemens-iot2050-advanced"

    def figures(*options: str) -> tuple[float, float]:
        found = json.loads(typed("hardware", "check", profile, "--facts-per-s", "1000", *options, "--json").stdout)
        return found["hours_that_fit"], found["flash_years"]

    fits = figures()
    assert min(fits) > 0
    for option in ("bytes-per-fact", "commit-interval-ms", "erase-cycles", "write-amplification"):
        assert figures(f"--{option}", "7") != fits
    done = typed("hardware", "check", profile, "--facts-per-s", "10000000")
    assert done.exit_code == 1
    assert "!" in done.stdout


def test_hardware_check_measures_this_machine(bsfg: Bsfg) -> None:
    """Without a profile, the disk and the machine are measured, the profile is chosen, and every sum has its result; a
    profile that does not exist is refused with what to type."""
    found = json.loads(bsfg("hardware", "check", "--folder", ".", "--json").stdout)
    assert found["profile"] in bsfg("hardware", "list").stdout
    assert found["disk"]["sync_p99_ms"] >= found["disk"]["sync_p50_ms"] >= 0
    assert found["hours_that_fit"] > 0
    assert len(found["sums"]) == 3
    unknown = bsfg("hardware", "check", "no-such-gateway")
    assert unknown.returncode == 1
    assert "bsfg hardware list" in unknown.stderr


def test_sql_answers_as_a_table_csv_and_json(node: Bsfg, tmp_path: Path) -> None:
    """One statement in three forms, from the node's store, from a named file and from standard input."""
    node("append", "batch:1", "done", '{"a":"x, y"}')
    statement = "select subject, offset, object_json ->> 'a' as a from facts"
    assert node("sql", statement).stdout.splitlines() == [
        "subject  offset  a",
        "-------  ------  ----",
        "batch:1       1  x, y",
    ]
    assert node("sql", "--csv", statement).stdout.splitlines() == ["subject,offset,a", 'batch:1,1,"x, y"']
    file = str(next(tmp_path.rglob("facts.db")))
    assert json.loads(node("sql", "--json", "--file", file, statement).stdout) == {
        "subject": "batch:1",
        "offset": 1,
        "a": "x, y",
    }
    assert node("sql", "select * from facts where 0").stdout.startswith("stream")


def test_wrong_sql_exits_with_status_1_and_no_traceback(node: Bsfg) -> None:
    """Wrong SQL, writing and a missing store end with status 1 and no traceback."""
    assert "does not exist" in node("sql", "select 1").stderr
    node("append", "batch:1", "done", "{}")
    for statement, why in (
        ("selec", "syntax error"),
        ("drop table facts", "SELECT"),
        ("select x from facts", "no such column"),
    ):
        done = node("sql", statement)
        assert done.returncode == 1
        assert why in done.stderr
        assert "Traceback" not in done.stderr


def test_a_mistake_in_one_section_stops_no_other_command(bsfg: Bsfg, tmp_path: Path) -> None:
    """Each command takes what is right, and says once what is not; without a store to name, none works."""
    config = '[node]\nzone = "plant"\n[[modbus]]\nname = "plc1\nhost = "h"\n'
    (tmp_path / "node.toml").write_text(config)
    (tmp_path / "state").mkdir()
    FactStore.open(tmp_path / "state" / "facts.db", "plant").close()
    for words in (("latest",), ("consumer", "list"), ("source", "list"), ("store", "stats"), ("peer", "list")):
        found = bsfg(*words)
        assert "source plc1: left out: modbus[0]: is not TOML" in found.stderr, (words, found)
        assert found.stderr.count("left out") == 1
        assert (found.returncode == 0) == (words != ("latest",)), found  # there is no value
    (tmp_path / "node.toml").write_text(config.replace('"plant"', '"plant'))
    found = bsfg("store", "stats")
    assert (found.returncode, "node: is not TOML" in found.stderr) == (1, True)


def test_documented_queries_work(node: Bsfg) -> None:
    """Each command of docs/operate/query.md succeeds on a node with a fact."""
    node("append", "batch:1", "done", "{}")
    for arguments in shown("docs/operate/query.md", "query"):
        done = node(*arguments)
        assert done.returncode == 0, done.stderr


def test_a_stream_leaves_its_inner_stream_alone_when_it_is_collected() -> None:
    """The stream inside belongs to others: it stays open, and when they closed it first nothing is reported (Python
    3.13 reports what a collected stream's close raises)."""
    inner = io.TextIOWrapper(io.BytesIO(), "utf-8")
    stream = PrintableStream(inner)
    stream.write("a\x1bb")
    stream.close()
    inner.seek(0)
    assert inner.read() == "a\\u001bb"
    inner.close()
    PrintableStream(inner).close()


def test_a_node_may_open_more_files_than_a_shell_allows(node: Bsfg, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with a thousand devices, started in a terminal: the limit is raised before the node starts."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = list[tuple[int, int]]()

    async def run_node(_: object) -> None:
        found.append(resource.getrlimit(resource.RLIMIT_NOFILE))

    monkeypatch.setattr("agent.node.run_node", run_node)
    monkeypatch.setattr("agent.cli.run.set_up_logging", lambda: None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        assert node("run").returncode == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found == [(min(before[1], FILES_MAX), before[1])]
