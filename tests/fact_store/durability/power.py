"""From an strace log to the disks that a power cut could have left.

`Recording` parses the calls of every thread into operations on the store's files; `crashes` walks them and yields,
after each one, disks made of what is durable and a choice of what is not. The rules are those of POSIX and no kinder:

- A write or truncation is durable when a sync of its file, begun after the write had returned, has returned. Until
  then any part of it may be on the disk or not: none of the pending ones, all, those up to a moment, or any of them in
  any order of arrival, and of each only some sectors of 512 bytes.
- A name made or removed is durable when a sync of the folder, begun later, has returned.
- What a program has said on standard output counts from the moment it began to say it.

Mapped memory (`-shm`) is not seen and not needed: SQLite builds it anew.
"""

import functools
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

SECTOR = 512
CALLS = "openat,creat,pwrite64,pwritev,write,ftruncate,fallocate,fdatasync,fsync,unlink,unlinkat,link,linkat,rename,renameat,renameat2"
ENDINGS = ("", "-wal", "-journal", ".witness", ".witness.new")
"""The files a store is recovered from, by what follows the database's name."""

_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>(.*)|(\w+)\((.*))", re.DOTALL)
_UNFINISHED = " <unfinished ...>"
_RESULT = re.compile(r"(.*)\) += (-?\d+)[^)]*$", re.DOTALL)
_DESCRIPTOR = re.compile(r"\d+<((?:\\x[0-9a-f]{2})+)>(?!\(deleted\))")
_STRING = re.compile(r'"([^"]*)"')
_NAMING = {"openat", "creat", "unlink", "unlinkat", "link", "linkat", "rename", "renameat", "renameat2"}


@functools.cache
def require_strace() -> None:
    """Skip, with the reason, where programs cannot be traced."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: apt-get install strace")
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"strace may not trace here (ptrace is forbidden): {tried.stderr.strip()[:200]}")


def record(command: Sequence[str], folder: Path, log: Path) -> None:
    """Run a program under strace."""
    subprocess.run(
        ["strace", "-f", "-y", "-xx", "-s", "2000000", "-e", f"trace={CALLS}", "-o", str(log), *command],
        cwd=folder, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """One system call: where in the log it began and returned, its arguments, its result."""

    begin: int
    end: int
    name: str
    words: str
    result: int


class File:
    """The durable part of a file's content."""

    def __init__(self) -> None:
        self.durable = bytearray()


@dataclass(eq=False, slots=True)
class Write:
    """Bytes at a place of a file; with `data` None a truncation to `offset`."""

    file: File
    offset: int
    data: bytes | None
    is_done: bool = False

    def apply(self, content: bytearray, sectors: frozenset[int] | None = None) -> None:
        """Apply it to a file's content, or only these sectors of it."""
        if self.data is None:
            del content[self.offset :]
            content.extend(bytes(self.offset - len(content)))
            return
        end = self.offset + len(self.data)
        for sector in (0,) if sectors is None else sorted(sectors):
            first, last = self.offset, end
            if sectors is not None:
                first, last = max(first, sector * SECTOR), min(end, (sector + 1) * SECTOR)
            content.extend(bytes(max(0, last - len(content))))
            content[first:last] = self.data[first - self.offset : last - self.offset]

    @property
    def sectors(self) -> range:
        """The sectors that it touches."""
        return range(self.offset // SECTOR, (self.offset + len(self.data or b"x") - 1) // SECTOR + 1)


@dataclass(eq=False, slots=True)
class Entry:
    """A name of the folder made (`file`) or removed (None); a file that is renamed loses its name `before`."""

    ending: str
    file: File | None
    is_done: bool = False
    before: str | None = None

    def apply(self, names: dict[str, File]) -> None:
        """Do it to the folder."""
        if self.before is not None:
            names.pop(self.before, None)
        if self.file is None:
            names.pop(self.ending, None)
        else:
            names[self.ending] = self.file


@dataclass(frozen=True, slots=True)
class Sync:
    """A sync in progress: what becomes durable when it returns."""

    operations: list[Write] | list[Entry]


@dataclass(frozen=True, slots=True)
class Crash:
    """A disk that a power cut could leave after an operation, and everything said before it."""

    moment: int
    kind: str
    files: dict[str, bytes]
    said: bytes

    def lay_out(self, path: Path) -> None:
        """Write this disk's files to the store's path, in place of those there."""
        for ending in (*ENDINGS, "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
        for ending, content in self.files.items():
            path.with_name(path.name + ending).write_bytes(content)


def parse(log: Path) -> list[Call]:
    """Every completed call, in the order they began. A call that another thread interrupted is joined."""
    calls, begun = list[Call](), dict[str, tuple[int, str, str]]()
    with log.open(encoding="ascii", errors="replace") as lines:
        for number, line in enumerate(lines):
            if (found := _LINE.match(line.rstrip("\n"))) is None:
                continue  # a signal, an exit
            thread, resumed, rest, name, words = found.groups()
            if resumed:
                begin, name, words = begun.pop(thread)
                assert name == resumed
                words += rest
            elif words.endswith(_UNFINISHED):
                begun[thread] = number, name, words.removesuffix(_UNFINISHED)
                continue
            else:
                begin = number
            if (whole := _RESULT.match(words)) is not None:
                calls.append(Call(begin, number, name, whole[1], int(whole[2])))
    for begin, name, words in begun.values():
        calls.append(Call(begin, 2**62, name, words, 0))  # the program ended meanwhile
    return sorted(calls, key=lambda call: call.begin)


class Disk:
    """The store's folder as the recorded calls change it: what is durable, and what is pending."""

    def __init__(self, store: Path) -> None:
        self._folder = str(store.parent)
        self._store = str(store)
        self._names: dict[str, File] = {}  # as the program sees them
        self.durable_names: dict[str, File] = {}
        self.pending: list[Write | Entry] = []
        self.version = 0  # counts what became durable
        self.said = b""

    def begin(self, call: Call) -> Write | Entry | Sync | Call | None:
        """A call begins: from now on its data may be on the disk. None for a call that does not concern the store."""
        paths = [_unhex(text) for text in _STRING.findall(call.words)[:2]] if call.name in _NAMING else []
        here = _descriptor(call.words) if call.name not in _NAMING else "/".join(paths[:1])
        ending = self._ending(here)
        match call.name:
            case "write" if call.words.startswith("1<"):
                self.said += _data(call.words)
                return call
            case "fsync" | "fdatasync" if here == self._folder:
                return Sync([change for change in self.pending if isinstance(change, Entry)])
            case _ if ending is None and all(self._ending(path) is None for path in paths):
                return None
            case "openat" if "O_CREAT" not in call.words or call.result < 0 or ending in self._names:
                assert "O_TRUNC" not in call.words
                return None
            case "openat":
                return self._add(Entry(ending, File()))
            case "unlink":
                return None if call.result < 0 else self._add(Entry(ending, None))
            case "rename":
                before, after = map(self._ending, paths)
                assert before is not None and after is not None, "a file of the store leaves it"  # noqa: PT018 one fact
                return self._add(Entry(after, self._names[before], before=before))
            case "pwrite64":
                return self._add(Write(self._names[ending], _number(call.words), _data(call.words)))
            case "ftruncate":
                return self._add(Write(self._names[ending], _number(call.words), None))
            case "fsync" | "fdatasync":
                file = self._names.get(ending)
                return Sync([change for change in self.pending if isinstance(change, Write) and change.file is file])
        raise AssertionError(f"{call.name} of the store's files is not modelled: {call.words[:200]}")

    def end(self, call: Call, begun: Write | Entry | Sync | Call) -> None:
        """A call has returned."""
        assert call.result >= 0, f"{call.name} failed while it was recorded"
        if isinstance(begun, Write | Entry):
            begun.is_done = True
        elif isinstance(begun, Sync):
            for change in begun.operations:
                assert change.is_done, "two threads at one file"
                change.apply(change.file.durable if isinstance(change, Write) else self.durable_names)
            gone = set(map(id, begun.operations))
            self.pending = [change for change in self.pending if id(change) not in gone]
            self.version += 1

    def _add(self, operation: Write | Entry) -> Write | Entry:
        if isinstance(operation, Entry):
            operation.apply(self._names)
        self.pending.append(operation)
        return operation

    def _ending(self, path: str) -> str | None:
        ending = path.removeprefix(self._store)
        return ending if path.startswith(self._store) and ending in ENDINGS else None


Choice = dict[Write | Entry, frozenset[int] | None]
"""What of the pending operations is on the disk: whole (None), or these sectors."""


def choose(pending: list[Write | Entry], kind: str, rng: random.Random) -> Choice:
    """Some of the pending operations."""
    match kind:
        case "none":
            return {}
        case "all":
            return dict.fromkeys(pending)
        case "prefix":
            return dict.fromkeys(pending[: rng.randint(0, len(pending))])
    share = rng.choice((0.1, 0.5, 0.9))
    chosen: Choice = dict.fromkeys(change for change in pending if rng.random() < share)
    if kind == "torn":
        writes = [change for change in pending if isinstance(change, Write) and len(change.sectors) > 1]
        for write in rng.sample(writes, min(len(writes), rng.randint(1, 3))):
            first, last = write.sectors[0], write.sectors[-1]
            if rng.random() < 0.5:
                chosen[write] = frozenset(range(first, rng.randint(first, last)))
            else:
                chosen[write] = frozenset(sector for sector in write.sectors if rng.random() < 0.5)
    return chosen


KINDS = ("none", "all", "prefix", "subset", "torn")


def walk(calls: list[Call], store: Path) -> Iterator[Disk]:
    """The disk after each beginning and each return of a call that concerns the store."""
    moments = [(call.begin, 0, call) for call in calls] + [(call.end, 1, call) for call in calls]
    disk, begun = Disk(store), dict[int, Write | Entry | Sync | Call]()
    for _, is_end, call in sorted(moments, key=lambda moment: moment[:2]):
        if is_end:
            if (handle := begun.pop(id(call), None)) is not None:
                disk.end(call, handle)
                yield disk
        elif (handle := disk.begin(call)) is not None:
            begun[id(call)] = handle
            yield disk


def crashes(log: Path, store: Path, states: int, rng: random.Random) -> Iterator[Crash]:
    """At most `states` different disks, spread evenly over all moments of a recorded program and over the kinds."""
    calls = parse(log)
    share = states / sum(1 for _ in walk(calls, store))
    seen, due = set[object](), 0.0
    for moment, disk in enumerate(walk(calls, store)):
        due += share
        for _ in range(4 * int(due)):
            kind = rng.choice(KINDS)
            choice = choose(disk.pending, kind, rng)
            key = disk.version, len(disk.said), frozenset((id(change), sectors) for change, sectors in choice.items())
            if key not in seen:
                seen.add(key)
                yield Crash(moment, kind, files(disk, choice), disk.said)
                due -= 1
            if due < 1:
                break


def files(disk: Disk, choice: Choice) -> dict[str, bytes]:
    """The content of each file that is there, by the ending of its name."""
    names = dict(disk.durable_names)
    for change in disk.pending:
        if isinstance(change, Entry) and change in choice:
            change.apply(names)
    found = {}
    for ending, file in names.items():
        content = bytearray(file.durable)
        for change in disk.pending:
            if isinstance(change, Write) and change.file is file and change in choice:
                change.apply(content, choice[change])
        found[ending] = bytes(content)
    return found


def _unhex(text: str) -> str:
    return bytes.fromhex(text.replace("\\x", "")).decode()


def _descriptor(words: str) -> str:
    """Path of the descriptor that a call begins with."""
    found = _DESCRIPTOR.match(words)
    return _unhex(found[1]) if found else ""


def _data(words: str) -> bytes:
    """The first string argument of a call."""
    start = words.index('"') + 1
    return bytes.fromhex(words[start : words.index('"', start)].replace("\\x", ""))


def _number(words: str) -> int:
    """The last argument of a call."""
    return int(words.rpartition(", ")[2])
