"""`bsfg modbus` against the plant's device: scan, probe, read, plan."""

import json
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import Bsfg
from tests.ingest.fakes import Program, running
from tests.ingest.modbus.field import field_device
from tests.ingest.opcua.security.certificates import in_files
from tests.support import command

pytestmark = pytest.mark.system


@pytest.fixture
def device(meter: Program) -> str:
    """Where it is, as commands name it."""
    return f"tcp://127.0.0.1:{meter.port}"


def test_probe_prints_the_row_that_a_source_reads(device: str, bsfg: Bsfg, tmp_path: Path) -> None:
    """The printed section and row, pasted as they are, are a source whose tag has the value of the panel."""
    done = bsfg("modbus", "probe", device, "--base", "40001", "30017", "--value", "50.0")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    rows = text.partition("# row for the tag file (address_base = 40001)\n")[2].splitlines()[:2]
    section = text.partition("# for node.toml\n")[2]
    assert rows[1].split(",")[1:6] == ["1", "input", "30017", "float32", "ABCD"]
    assert bsfg("init", "--zone", "plant-a").returncode == 0
    (tmp_path / "tags.d").mkdir()
    (tmp_path / "tags.d" / "127.0.0.1.csv").write_text("\n".join(rows))
    with (tmp_path / "node.toml").open("a") as file:
        file.write(section)
    done = bsfg("source", "read", "127.0.0.1", "--json")
    assert abs(json.loads(done.stdout)["value"] - 50.0) <= 0.5


def test_probe_of_texts_and_of_nothing(device: str, bsfg: Bsfg) -> None:
    """A model name is found as a string; a value that nothing meets is status 1 with what to try, registers that do not
    exist are status 1 with the reason of the device."""
    done = bsfg("modbus", "probe", device, "--base", "0", "100", "--value", "PM-1", "--json")
    (best, *_) = json.loads(done.stdout)["candidates"]
    assert (best["table"], best["register"], best["type"], best["value"]) == ("holding", "100", "string4", "PM-1")
    nothing = ("modbus", "probe", device, "--base", "0", "input:16", "--value", "7123456789", "--tolerance", "0")
    assert bsfg(*nothing, "--json").returncode == 1
    done = bsfg(*nothing)
    assert done.returncode == 1
    assert "nothing here or one register off equals 7123456789 within 0, in any power of ten" in done.stdout
    done = bsfg("modbus", "probe", device, "--base", "0", "input:500", "--value", "1")
    assert done.returncode == 1
    assert "unit 1 gives none of these registers (input: illegal data address (2))" in done.stderr


def test_probe_finds_what_the_wrong_base_hides_and_what_moves(device: str, bsfg: Bsfg) -> None:
    """A register that is one off is found, marked as such, and the base that explains it is named. Over several looks a
    live reading moves, and the text beside it does not."""
    options = ("--again", "3", "--interval-s", "0.3", "--tolerance", "5%")
    done = bsfg("modbus", "probe", device, "--base", "0", "input:17", "--value", "50.0", *options)
    wanted = r"input 16 +float32 +ABCD .* [\d.]+ to [\d.]+.*one register off as if counted from 1 \(address_base = 1\)"
    assert re.search(wanted, done.stdout), done.stdout
    assert "in 4 looks" in done.stdout
    done = bsfg("modbus", "probe", device, "--base", "0", "holding:100", "--value", "20557", *options)
    assert re.search(r"holding 100 +uint16 +AB +20557 +0 +constant", done.stdout)


def test_scan_finds_units_and_registers(device: str, bsfg: Bsfg) -> None:
    """Registers are found exactly, in the numbers of the base; what was not looked at is called so and not missing."""
    done = bsfg("modbus", "scan", device, "--base", "1", "discrete:1-40", "--pause-ms", "0", "--json")
    found = json.loads(done.stdout)
    assert found["found"] == [{"address": 0, "count": 16}]  # this server keeps bits in whole words
    done = bsfg("modbus", "scan", device, "--base", "40001", "40101-40200", "--pause-ms", "0")
    assert done.stdout.startswith("holding 40101-40106 (6)\n6 of 100 holding registers of unit 1 exist, ")
    done = bsfg("modbus", "scan", device, "--base", "0", "input:0-499", "--pause-ms", "0", "--reads-max", "7", "--json")
    found = json.loads(done.stdout)
    assert found["reads"] == 7
    assert found["unknown"][-1]["address"] + found["unknown"][-1]["count"] == 500
    done = bsfg("modbus", "scan", device, "--base", "0", "input:400-420", "--pause-ms", "0")
    assert (done.returncode, "0 of 21 input registers" in done.stdout) == (1, True)


def test_scan_distinguishes_silent_units(bsfg: Bsfg) -> None:
    """A unit that does not answer is not listed, and a scan of its registers ends with what to do."""
    with running("modbus_server", "--silent", "2") as program:
        device = f"tcp://127.0.0.1:{program.port}"
        quick = ("--timeout-ms", "200", "--pause-ms", "0")
        done = bsfg("modbus", "scan", device, *quick, "--units", "1-2", "--json")
        assert [unit["unit_id"] for unit in json.loads(done.stdout)["units"]] == [1]
        done = bsfg("modbus", "scan", device, *quick, "--units", "2")
        assert (done.returncode, "none of 1 units answers" in done.stderr) == (1, True)
        done = bsfg("modbus", "scan", device, *quick, "--base", "0", "--unit", "2", "holding:0-50")
        assert (done.returncode, "unit 2" in done.stderr) == (1, True)
        done = bsfg("modbus", "probe", device, *quick, "--base", "0", "--unit", "2", "holding:0")
        assert done.returncode == 1
        assert re.search(
            r"unit 2 at .* does not answer within 200 ms; which units are there: bsfg modbus scan", done.stderr
        )


class _Garbling(socketserver.BaseRequestHandler):
    """Answers with the unit and bytes that are no answer to any request."""

    def handle(self) -> None:
        while request := self.request.recv(260):
            self.request.sendall(bytes([request[6], 0x41, *range(1, 9)]))


def test_units_that_answer_wrongly_are_not_silent(bsfg: Bsfg) -> None:
    """Each is listed with its bytes, whole, and the advice is about how the device is spoken to; so is the reason of a
    value."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Garbling) as server:
        thread = threading.Thread(target=server.serve_forever, name="device")
        thread.start()
        device, quick = f"tcp://127.0.0.1:{server.server_address[1]}", ("--timeout-ms", "200", "--pause-ms", "0")
        units = bsfg("modbus", "scan", device, *quick, "--units", "1-2")
        value = bsfg("modbus", "read", device, *quick, "--base", "0", "holding:0")
        server.shutdown()
        thread.join()
    assert "unit 2   sends 02 41 01 02 03 04 05 06 07 08, 10 bytes" in units.stdout
    assert "none of 2 units answers a read; 2 of them send something else: check whether it speaks" in units.stderr
    assert (units.returncode, value.returncode) == (1, 1)
    assert "01 41 01 02 03 04 05 06 07 08, 10 bytes that are no answer to a read of 1 holding values" in value.stdout


def test_read_gives_each_value_or_the_reason(device: str, bsfg: Bsfg) -> None:
    """Values of several tables and types in one call; one that is refused has its reason and the others their
    values."""
    points = ("input:0-2", "input:24:float64:DCBA", "coil:0", "holding:100:string8", "holding:7")
    done = bsfg("modbus", "read", device, "--base", "0", *points, "--json")
    assert done.returncode == 1
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["register"] for row in found] == ["0", "1", "2", "24", "0", "100", "7"]
    assert all(2260 <= row["value"] <= 2340 for row in found[:3])
    assert 750 <= found[3]["value"] <= 1250
    assert found[5]["value"] == "PM-1"
    assert found[6]["why"] == "unit 1 refuses it: illegal data address (2)"
    done = bsfg("modbus", "read", device, "--base", "1", "--unit", "2", "holding:41:float32:BADC")
    assert done.returncode == 0, done.stderr
    assert re.search(r"holding 41 +float32 +BADC +[45]\d\.\d+", done.stdout)


def test_read_watches_until_it_is_interrupted(device: str, tmp_path: Path) -> None:
    """--watch prints what has changed, line by line also in a pipe, and Ctrl-C is its good end."""
    words = ["modbus", "read", device, "--base", "0", "input:16:float32", "--watch", "--interval-s", "0.2", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "agent.cli", *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        values = [json.loads(process.stdout.readline())["value"] for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(command.LIMIT_S) == 0
    finally:
        process.kill()
        process.stdout.close()
    assert len(set(values)) == 3


def test_each_form_of_a_device(bsfg: Bsfg, device: str, tmp_path: Path) -> None:
    """TLS with its files, RTU through a converter, a plain host and port, and a source of node.toml with its own unit
    and base: each reads, and what is missing for TLS is named."""
    ca_file, _ = in_files(tmp_path, "authority")
    file, key = in_files(tmp_path, "meter.example", "authority")
    with field_device("tls", "0", file, key) as port:
        words = ("modbus", "read", f"tls://127.0.0.1:{port}", "--base", "0", "holding:42")
        # A process of its own: its end does not wait for the goodbye of TLS.
        done = command.process(tmp_path, *words, "--ca", str(ca_file), "--server-name", "meter.example", "--json")
        assert json.loads(done.stdout)["value"] == 42, done.stderr
        done = bsfg(*words)
        assert (done.returncode, "ca_file: is needed for tls" in re.sub(r"\s+", " ", done.stderr)) == (2, True)
    with field_device("rtu") as port:
        done = bsfg("modbus", "read", f"rtu+tcp://127.0.0.1:{port}", "--base", "1", "holding:43", "--json")
        assert json.loads(done.stdout)["value"] == 42, done.stderr
    assert bsfg("init", "--zone", "plant-a").returncode == 0
    with (tmp_path / "node.toml").open("a") as opened:
        address = device.removeprefix("tcp://127.0.0.1:")
        opened.write('[[modbus]]\nname = "drive"\nhost = "127.0.0.1"\ntags_file = "t.csv"\naddress_base = 40001\n')
        opened.write(f"unit_id = 2\nport = {address}\n")
    done = bsfg("modbus", "read", "drive", "40041:float32:BADC", "--json")
    assert json.loads(done.stdout)["unit_id"] == 2, done.stderr
    done = bsfg("modbus", "read", device.removeprefix("tcp://"), "--base", "0", "input:0")
    assert done.returncode == 0
    done = bsfg("modbus", "scan", str(tmp_path / "tty-none"))
    assert (done.returncode, "may this user open it" in done.stderr) == (1, True)


def test_a_misspelt_source_is_not_only_a_host_that_is_unknown(bsfg: Bsfg) -> None:
    """A bare name that is no source may be a host; which one was meant, only the reader knows."""
    words = ("modbus", "read", "localhost", "--base", "0", "input:0")
    said = "has no [[modbus]] source 'localhost'; taken as the name of a host"
    assert said not in bsfg(*words).stderr, "without a node.toml there are no sources"
    assert bsfg("init", "--zone", "plant-a").returncode == 0
    assert said in bsfg(*words).stderr
    assert said not in bsfg("modbus", "read", "tcp://localhost", *words[3:]).stderr


@pytest.mark.parametrize(
    "arguments, why",
    [
        (("probe", "tcp://h", "100"), "--base is missing"),
        (("probe", "ftp://h", "100", "--base", "0"), "is not a device; write tcp://host:502"),
        (("probe", "tcp://[::1", "100", "--base", "0"), "is not a device; write tcp://host:502"),
        (("probe", "tcp://h", "--base", "0", "coil:1"), "is one bit"),
        (("probe", "tcp://h", "--base", "0", "1-99"), "name at most 32"),
        (("probe", "tcp://h", "--base", "0", "1", "--value", "231,4"), "write it with a point"),
        (("probe", "tcp://h", "--base", "0", "1", "--value", "2", "--tolerance", "x"), "write 1% or"),
        (("probe", "tcp://h", "--base", "1", "0"), "is outside 1 to 65536"),
        (("read", "tcp://h", "--base", "0", "5"), "names no table; write holding:5"),
        (("read", "tcp://h", "--base", "0", "holding:5:real"), "is not a type; known are"),
        (("read", "tcp://h", "--base", "0", "holding:9-5"), "does not run upwards"),
        (("read", "tcp://h", "--base", "40001", "x"), "is no register; write"),
        (("scan", "tcp://h", "--units", "0-999"), "write numbers from 0 to 255"),
        (("scan", "tcp://h", "holding:0-9"), "--base is missing"),
    ],
)
def test_wrong_words_are_usage_errors(bsfg: Bsfg, arguments: tuple[str, ...], why: str) -> None:
    """What cannot be meant is status 2, with what to write instead; no connection is tried."""
    done = bsfg("modbus", *arguments)
    assert done.returncode == 2, done.stdout
    text = re.sub(r"\s+", " ", done.stderr)
    assert why in text


def test_a_device_that_is_not_there(bsfg: Bsfg) -> None:
    """A closed port is status 1 and says what to look at, in every command that connects."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        device = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        for arguments in (("scan", device), ("probe", device, "1"), ("read", device, "holding:1")):
            done = bsfg("modbus", *arguments, *(() if arguments[0] == "scan" else ("--base", "0")))
            assert (done.returncode, "is the device on, are address and port right" in done.stderr) == (1, True), (
                arguments
            )
