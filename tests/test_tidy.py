"""The rules of the project's code and documents, as tests: what a reviewer would otherwise have to notice.

Each rule is a function over one parsed module that yields its complaints; its docstring is the rule and is printed when
it is broken. Each is also run on a sample that breaks it and on one that does not (`BAD`, `GOOD` at the end), because a
rule that cannot fail has no effect. An exception is listed in a table at the top, with its reason, or marked with a
comment `# tidy: <reason>` on the line itself.
"""

import ast
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.wrap_prose import wrapped

ROOT = Path(__file__).resolve().parents[1]

# --- the structure of the project -------------------------------------------------------------------------------------

# The parts that each part may import, layer by layer: only parts named above it.
GROUND = (
    "agent.concurrency",
    "agent.errors",
    "agent.escaping",
    "agent.nftables",
    "agent.counter",
    "agent.status_codes",
    "agent.message",
    "agent.lease",
    "agent.telemetry",
    "agent.append_contract",
    "agent.columns",
    "agent.batch",
    "agent.pages",
)
PARTS = ("agent.fact_store", "agent.ingest", "agent.replication", "agent.health")
FOUNDATION = (*GROUND, "agent.settings", "agent.signing")
WHOLE = (*FOUNDATION, *PARTS, "agent.config", "agent.file_replace")
KNOWS: dict[str, tuple[str, ...]] = {
    "agent": (),
    "agent.concurrency": (),
    "agent.errors": (),
    "agent.file_watch": ("agent.concurrency",),
    "agent.file_replace": (),
    "agent.escaping": (),
    "agent.nftables": (),
    "agent.counter": (),
    "agent.status_codes": (),
    "agent.message": ("agent.errors",),
    "agent.lease": ("agent.errors", "agent.message"),
    "agent.telemetry": (),
    "agent.append_contract": ("agent.errors", "agent.message"),
    "agent.columns": ("agent.errors", "agent.message"),
    "agent.batch": ("agent.errors", "agent.message", "agent.columns"),
    "agent.pages": ("agent.batch", "agent.lease"),
    "agent.settings": ("agent.columns", "agent.message"),
    "agent.signing": (*GROUND, "agent.settings"),
    "agent.fact_store": FOUNDATION,
    "agent.query": (*FOUNDATION, "agent.fact_store"),  # reads only
    "agent.ingest": (
        "agent.concurrency",
        "agent.counter",
        "agent.errors",
        "agent.escaping",
        "agent.columns",
        "agent.message",
        "agent.status_codes",
        "agent.file_watch",
        "agent.file_replace",
        "agent.settings",
    ),  # appends through a port
    "agent.replication": (*FOUNDATION, "agent.file_watch", "agent.file_replace"),  # stores through a port
    "agent.health": (
        "agent.concurrency",
        "agent.errors",
        "agent.message",
        "agent.settings",
    ),  # reads figures that the node hands it
    "agent.hardware": ("agent.errors", "agent.nftables", "agent.health"),  # the sum of what a node writes
    "agent.config": ("agent.errors", "agent.settings", "agent.file_replace"),  # loads none of the parts
    "agent.backup": ("agent.errors", "agent.settings", "agent.config"),
    "agent.local_socket": (*FOUNDATION, "agent.fact_store", "agent.replication", "agent.config"),
    # Reads only, and confirms what it has made durable.
    "pyspark_bsfg": (*FOUNDATION, "agent.fact_store", "agent.replication", "agent.local_socket"),
    "agent.node": (*WHOLE, "agent.file_watch", "agent.query", "agent.local_socket"),
    "agent.demo": (*WHOLE, "agent.local_socket", "agent.node"),
    "bench": (*WHOLE, "agent.query", "agent.local_socket", "agent.node", "agent.demo", "pyspark_bsfg"),
    "agent.cli": (
        *(*WHOLE, "agent.query", "agent.local_socket", "agent.node", "agent.demo", "agent.hardware", "bench"),
        "agent.backup",
    ),
    "appliance": (),
}

# The floors inside a part, lowest first: a folder imports only folders of lower floors; `a|b` share a floor and do not
# import each other. Modules directly in the part are its top floor.
FLOORS: dict[str, tuple[str, ...]] = {
    "agent.fact_store": (
        *(
            "log",
            "sqlite",
            "read",
            "append",
            "consumers",
            "retention",
            "writer",
            "artifacts",
            "integrity",
            "divergence",
        ),
    ),
    "agent.query": ("scan", "latest", "sql", "export"),
    "agent.replication": ("protocol", "pki", "mqtt", "serving|pulling", "broker"),
}

# Packages without a face of their own: their modules and folders are what others import.
OPEN = {
    *("agent", "agent.replication", "agent.query", "agent.hardware", "agent.health", "agent.demo", "bench"),
    "agent.settings",  # a module each part of node.toml
    "agent.signing",  # heads are read without the libraries that keys need
    "agent.replication.protocol",  # a module each subject
    *("agent.cli", "agent.cli.facts", "agent.cli.modbus", "agent.cli.opcua", "agent.cli.source", "agent.cli.store"),
    *("agent.cli.hardware", "agent.cli.pki", "agent.cli.prepare", "agent.cli.tags"),
    *("bench.common", "bench.store", "bench.replication", "bench.wear"),
    # Inside agent.ingest: a face would import a protocol library where only a tag file is read.
    *(
        "agent.ingest.opcua",
        "agent.ingest.opcua.explore",
        "agent.ingest.opcua.security",
        "agent.ingest.opcua.values",
        "agent.ingest.modbus",
        "agent.ingest.modbus.explore",
        "agent.ingest.tags",
        "agent.ingest.tags.foreign",
    ),
    "agent.demo.plant",
}

# Subpackages that others may import past a face: a face that offered them would load a protocol library for every
# user, or would name what only one group of commands needs.
ENTERED = (
    "agent.ingest.modbus.explore",
    "agent.ingest.opcua.explore",
    "agent.ingest.opcua.security",
    "agent.ingest.tags",
    "agent.local_socket.serving",  # loads the store, which a program that asks does not need
)

# A folder that holds more than this is two folders.
MODULES_PER_FOLDER_MAX = 15

# Modules that decide: values and a time in, values out.
CORES: tuple[str, ...] = (
    "agent/cli/prepare/differences.py",
    "agent/node/reload_plan.py",
    *(
        f"agent/{name}.py"
        for name in (
            "append_contract",
            "backup/container",
            "backup/contents",
            "batch",
            "columns",
            "config/sections_text",
            "config/start_settings",
            "counter",
            "escaping",
            "lease",
            "message",
            "nftables",
            "pages",
            "settings/opcua_address",
            "settings/peers",
            "settings/signing",
            "settings/sources",
            "settings/store",
            "status_codes",
        )
    ),
    *(
        f"agent/fact_store/append/{name}.py"
        for name in (
            "acks",
            "checkpoint",
            "admission",
            "group_commit",
        )
    ),
    *(f"agent/fact_store/divergence/{name}.py" for name in ("epoch_rules",)),
    *(f"agent/fact_store/integrity/{name}.py" for name in ("row_checks",)),
    *(
        f"agent/fact_store/log/{name}.py"
        for name in (
            "artifact_reference",
            "catalog",
            "frontier",
            "held_ranges",
            "lifecycle",
            "operational_facts",
            "page_assembly",
            "records",
            "store_age",
            "tail_cache",
            "timeline",
            "wall_clock",
        )
    ),
    *(f"agent/fact_store/read/{name}.py" for name in ("forecast",)),
    *(
        f"agent/fact_store/retention/{name}.py"
        for name in (
            "fullness",
            "holding",
            "retention",
        )
    ),
    *(f"agent/fact_store/sqlite/{name}.py" for name in ("message_filter",)),
    *(f"agent/hardware/{name}.py" for name in ("conduits", "fit", "profile", "udev")),
    *(
        f"agent/health/{name}.py"
        for name in (
            "address",
            "consumer_lag",
            "flash",
            "metrics",
            "page",
            "problems",
            "verdict",
            "watchdog",
        )
    ),
    *(
        f"agent/ingest/{name}.py"
        for name in (
            "gap",
            "lifecycle",
            "probe_result",
            "sampling",
        )
    ),
    *(
        f"agent/ingest/modbus/{name}.py"
        for name in (
            "address",
            "block",
            "columns",
            "counters",
            "decode",
            "explore/interpretation",
            "explore/register_text",
            "explore/register_scan",
            "explore/request_plan",
            "line/answers",
            "line/frames",
            "no_value",
            "refused_spans",
            "poll_grid",
            "plan",
            "refusal",
            "refusal_search",
            "sweep",
            "units",
        )
    ),
    *(
        f"agent/ingest/opcua/{name}.py"
        for name in (
            "address",
            "columns",
            "decode",
            "groups",
            "history/gap_fill",
            "liveness",
            "monitoring",
            "plan",
            "publishing",
            "explore/tag_rows",
            "explore/walk",
            "security/certificate_facts",
            "security/refusal",
            "security/trust_list",
        )
    ),
    *(
        f"agent/ingest/opcua/events/{name}.py"
        for name in (
            "conditions",
            "event_fields",
            "event_loss",
            "event_message",
        )
    ),
    "agent/ingest/opcua/rescue/deduplicator.py",
    *(f"agent/ingest/opcua/values/{name}.py" for name in ("structures", "variant")),
    *(
        f"agent/ingest/tags/{name}.py"
        for name in (
            "change",
            "columns",
            "csv_rows",
            "example",
            "foreign/ignition",
            "foreign/kepware",
            "foreign/neuron",
            "foreign/translation",
            "sheet",
            "tag_map",
            "templates",
            "toml_rows",
        )
    ),
    *(f"agent/query/scan/{name}.py" for name in ("bounds", "fact_columns", "times")),
    *(f"agent/query/latest/{name}.py" for name in ("latest_rows", "latest_search", "latest_summary", "tag_age")),
    "agent/query/sql/plan.py",
    *(f"appliance/{name}.py" for name in ("packages", "sbom")),
    *(f"agent/signing/{name}.py" for name in ("certificates", "freshness", "heads", "keys", "messages", "runs")),
    *(
        f"agent/replication/broker/{name}.py"
        for name in (
            "config",
            "config_lint",
            "diagnosis",
            "firewall",
            "limits",
            "site",
        )
    ),
    *(f"agent/replication/mqtt/{name}.py" for name in ("carrier", "publish_packet")),
    *(f"agent/replication/pki/{name}.py" for name in ("rotation",)),
    *(
        f"agent/replication/protocol/{name}.py"
        for name in (
            "arrived_answer",
            "codec",
            "digest_diff",
            "errors",
            "pacing",
            "token_bucket",
            "topics",
        )
    ),
    *(
        f"agent/replication/pulling/{name}.py"
        for name in (
            "catch_up",
            "page_check",
            "pull_events",
            "receiver",
        )
    ),
    *(
        f"agent/replication/serving/{name}.py"
        for name in (
            "admission",
            "appends",
            "consumer_core",
            "consumer_effects",
            "latest_page",
            "limits",
            "pacing",
            "fair_queue",
            "outcomes",
            "page",
            "read_turns",
        )
    ),
    *(
        f"spark/pyspark_bsfg/{name}.py"
        for name in (
            "columns",
            "dictionary",
            "jobs/clean",
            "jobs/gaps",
            "jobs/rollup",
            "jobs/settings",
            "options",
            "packed",
            "pruning",
            "ranges",
            "schema",
            "landing/identities",
            "landing/manifest",
            "streaming/offsets",
            "streaming/options",
            "transports/ports",
            "transports/proofs",
            "transports/range_pages",
            "transports/reading",
            "values",
        )
    ),
)
IO_MODULES = {
    *("asyncio", "concurrent", "multiprocessing", "os", "queue", "random", "secrets", "select", "selectors", "signal"),
    *("socket", "sqlite3", "ssl", "subprocess", "threading", "time", "asyncua", "paho", "pymodbus"),
}

# The only place that catches every exception, because it must survive any failure of a source (STYLE 12).
SUPERVISORS: dict[str, int] = {"agent/ingest/supervisor.py": 1}

# Programs that wait for other programs, in a thread of their own and with nothing else to do.
SYNCHRONOUS = ("bench/", "agent/demo/", "agent/cli/", "appliance/")

# Functions that may stay longer than a screen, with their length today: it may shrink, never grow.
LONG_FUNCTIONS: dict[str, int] = {}
FUNCTION_LINES_MAX = 70
OPENING_WORDS_MIN = 10
EXCUSE = re.compile(r"# (tidy: |bounded by )\w+")

# Adapters of one kind have the same modules, so that a reader of one knows the other.
SIBLINGS = (("agent/ingest/opcua", "agent/ingest/modbus", {"address.py", "decode.py", "plan.py", "source.py"}),)

PACKAGES_WITH_DESIGN = ("fact_store", "query", "ingest", "replication", "health", "signing")
DESIGN_HEADINGS = ("Purpose", "Background", "Components", "Decisions and their price")

SKIPPED_FOLDERS = {".git", ".venv", "build", "dist", "__pycache__", "spark-warehouse"}
SKIPPED_FOLDERS |= {".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
# Spelled with classes, so that this line does not break its own rule.
MACHINE_WORDS = re.compile(r"(?<![\w}])(/roo[t]/|/hom[e]/[a-z]|/wor[k]/|/opt/pyp[i])|pypi[.]org|python[h]osted")


@dataclass(frozen=True)
class Module:
    """One parsed file, and the questions that several rules ask of it."""

    path: str
    source: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.source, self.path)

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree."""
        return list(ast.walk(self.tree))

    @functools.cached_property
    def lines(self) -> list[str]:
        """The source by line."""
        return self.source.splitlines()

    @property
    def name(self) -> str:
        """The module's dotted name."""
        return self.path.removeprefix("spark/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def package(self) -> str:
        """The dotted name of the package in which the module stands; of a package's own file, the package."""
        return self.name if self.path.endswith("/__init__.py") else self.name.rpartition(".")[0]

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and dotted name of everything imported, relative imports resolved; `from a import b` gives a.b."""
        package = self.package
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    above = package.split(".")[: len(package.split(".")) - node.level + 1]
                    base = ".".join([*above, base]).strip(".")
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)

    def excused(self, line: int) -> bool:
        """Whether the line, or a comment line directly above it, carries `# tidy: reason` or `# bounded by what`."""
        here = self.lines[line - 1]
        above = self.lines[line - 2].strip() if line > 1 else ""
        return bool(EXCUSE.search(here) or EXCUSE.match(above))


Rule = Callable[[Module], Iterator[str]]


@functools.cache
def modules() -> list[Module]:
    """Every Python file of the project."""
    files = (
        path.relative_to(ROOT)
        for folder in ("agent", "appliance", "spark", "bench", "tests", "tools")
        for path in sorted((ROOT / folder).rglob("*.py"))
    )
    return [
        Module(path.as_posix(), (ROOT / path).read_text("utf-8"))
        for path in files
        if not SKIPPED_FOLDERS.intersection(path.parts)
    ]


def part_of(name: str) -> str | None:
    """The part of the project that a dotted name belongs to, or None for a name of another project."""
    words = name.split(".")
    if words[0] == "agent":
        return ".".join(words[:2])
    return words[0] if words[0] in {"pyspark_bsfg", "bench", "appliance"} else None


def floor_of(part: str, path: str) -> int:
    """The floor of a file in its part; modules directly in the part are the top floor."""
    folder = path.removeprefix(part.replace(".", "/") + "/").partition("/")[0]
    return height_of(part, folder)


def height_of(part: str, folder: str) -> int:
    """The floor of a folder, or of a module of the part itself."""
    floors = FLOORS[part]
    return next((height for height, floor in enumerate(floors) if folder in floor.split("|")), len(floors))


@functools.cache
def face_of(package: str) -> frozenset[str]:
    """The names that a package offers: its `__all__`, or else all that its `__init__` imports from inside it."""
    tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    inside = [node for node in tree.body if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(package)]
    return frozenset(alias.name for node in inside for alias in node.names)


def is_product(module: Module) -> bool:
    """Whether the module ships: the agent and the Spark side."""
    return module.path.startswith(("agent/", "spark/"))


def called(node: ast.AST) -> str:
    """The dotted name of what a call calls, as written; empty for what is no name."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def limits_something(limit: ast.expr) -> bool:
    """Whether an argument is a limit: any name counts as one, a literal must be above 0."""
    try:
        return (ast.literal_eval(limit) or 0) > 0
    except ValueError:
        return True


def docstring_node(node: ast.AST) -> ast.Constant | None:
    """The constant that is the docstring of a module, class or function."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return body[0].value if isinstance(body[0].value.value, str) else None
    return None


def opening(module: Module) -> str:
    """A module's docstring, empty where there is none."""
    found = docstring_node(module.tree)
    return str(found.value) if found else ""


# --- the rules --------------------------------------------------------------------------------------------------------


def imports_run_downwards(module: Module) -> Iterator[str]:
    """A part imports only itself and the parts that KNOWS grants it, none beside or above it."""
    own = part_of(module.name)
    if own is None:
        return
    if own not in KNOWS:
        yield f"1: {own} has no floor; give it one in KNOWS"
        return
    for line, name in module.imports():
        other = part_of(name)
        if other in {None, own, "agent"} or other not in KNOWS:
            continue  # `from agent import batch` arrives here as agent.batch; bare `agent` holds nothing
        granted = any(name == known or name.startswith(known + ".") for known in KNOWS[own])
        if not granted:
            yield f"{line}: {own} imports {name}"


def floors_run_downwards(module: Module) -> Iterator[str]:
    """Inside a part, a folder imports only folders of lower floors in FLOORS."""
    part = part_of(module.name)
    if part not in FLOORS:
        return
    own, own_folder = (
        floor_of(part, module.path),
        module.path.removeprefix(part.replace(".", "/") + "/").partition("/")[0],
    )
    for line, name in module.imports():
        if not name.startswith(f"{part}."):
            continue
        folder = name.removeprefix(f"{part}.").partition(".")[0]
        height = height_of(part, folder)
        if height > own or (height == own < len(FLOORS[part]) and folder != own_folder):
            yield f"{line}: {module.name} imports {name}"


def faces_are_respected(module: Module) -> Iterator[str]:
    """What lies in another package is imported from the outermost package around it that has a face, by a name
    that its face offers."""
    if not module.path.startswith(("agent/", "spark/", "bench/")):
        return
    package = module.package
    for node in module.nodes:
        if not isinstance(node, ast.ImportFrom) or node.level or not (node.module or "").startswith("agent."):
            continue
        if (node.module or "").startswith(ENTERED):
            continue
        words = (node.module or "").split(".")
        packages = [".".join(words[:count]) for count in range(1, len(words) + 1)]
        foreign = [one for one in packages if one not in OPEN and not f"{package}.".startswith(f"{one}.")]
        if not foreign or not (ROOT / foreign[0].replace(".", "/")).is_dir():
            continue
        if node.module != foreign[0]:
            yield f"{node.lineno}: imports {node.module} past {foreign[0]}"
        elif missing := sorted({alias.name for alias in node.names} - face_of(foreign[0])):
            yield f"{node.lineno}: {foreign[0]} does not offer {', '.join(missing)}"


def cores_do_no_io(module: Module) -> Iterator[str]:
    """A core imports neither a clock, chance, a file, a socket, a thread nor an event loop."""
    if module.path in CORES:
        for line, name in module.imports():
            if name.split(".")[0] in IO_MODULES and not module.excused(line):
                yield f"{line}: a core imports {name}"


def queues_are_bounded(module: Module) -> Iterator[str]:
    """Every queue has a limit where it is made (Queue(maxsize), deque(maxlen)), or says beside it what bounds it."""
    if not is_product(module):
        return
    for node in module.nodes:
        if isinstance(node, ast.keyword) and node.arg == "default_factory":
            kind = ast.unparse(node.value).rpartition(".")[2]
            if kind in {"deque", "Queue", "SimpleQueue"} and not module.excused(node.value.lineno):
                yield f"{node.value.lineno}: default_factory={kind} has no limit"
        kind = called(node).rpartition(".")[2]
        if not isinstance(node, ast.Call) or module.excused(node.lineno):
            continue
        limits = [word.value for word in node.keywords if word.arg in {"maxsize", "maxlen"}]
        if kind in {"Queue", "LifoQueue", "PriorityQueue", "JoinableQueue"}:
            limits += node.args[:1]
        elif kind == "deque":
            limits += node.args[1:2]
        elif kind != "SimpleQueue":
            continue
        if not any(limits_something(limit) for limit in limits):
            yield f"{node.lineno}: {kind} without a limit"


def broad_except_is_the_supervisors(module: Module) -> Iterator[str]:
    """Only the supervisor catches Exception, and it once; all others name what is caught, or clean up and
    raise."""
    if not is_product(module):
        return
    broad = []
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler):
            if isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None:
                continue  # handles nothing: what came goes on
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        elif called(node).rpartition(".")[2] == "suppress":
            kinds = node.args
        else:
            continue
        if any(kind is None or ast.unparse(kind) in {"Exception", "BaseException"} for kind in kinds):
            broad.append(node.lineno)
    for line in broad[SUPERVISORS.get(module.path, 0) :]:
        yield f"{line}: catches everything"


def modules_open_in_prose(module: Module) -> Iterator[str]:
    """A module's docstring says what it is, promises and will not do, and more than its own name."""
    if module.path.startswith("tests/") and module.path != "tests/test_tidy.py":
        return
    words = re.findall(r"[A-Za-z_]{2,}", opening(module))
    own = set(re.split(r"[._]", module.name.lower()))
    said = [word for word in words if word.lower() not in own | {"module", "the", "of", "for", "this", "and"}]
    if len(said) < OPENING_WORDS_MIN:
        yield f"1: opens with {len(said)} words that say something; {OPENING_WORDS_MIN} are asked"


def functions_fit_a_screen(module: Module) -> Iterator[str]:
    """A function has at most seventy lines, its docstring not counted; LONG_FUNCTIONS may only shrink."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = docstring_node(node)
            spoken = (docstring.end_lineno or 0) - docstring.lineno + 1 if docstring else 0
            length = (node.end_lineno or 0) - node.lineno + 1 - spoken
            if length > LONG_FUNCTIONS.get(f"{module.path}:{node.name}", FUNCTION_LINES_MAX):
                yield f"{node.lineno}: {node.name} has {length} lines"


def tasks_belong_to_a_group(module: Module) -> Iterator[str]:
    """Work starts in a TaskGroup, held in a name that ends in `group`, and every task has a name."""
    if not is_product(module):
        return
    for node in module.nodes:
        receiver, _, verb = called(node).rpartition(".")
        if verb in {"ensure_future", "gather", "run_coroutine_threadsafe"} and not module.excused(node.lineno):
            yield f"{node.lineno}: {verb} starts work outside a TaskGroup"
        if verb == "create_task":
            if not receiver.lower().endswith("group") and not module.excused(node.lineno):
                yield f"{node.lineno}: {receiver}.create_task is no TaskGroup's"
            if not any(word.arg == "name" for word in node.keywords):
                yield f"{node.lineno}: a task without a name"


REPLACED_BY_CONCURRENCY = {f"asyncio.{name}" for name in ("TaskGroup", "timeout", "timeout_at", "wait_for")}


def cancellations_are_counted_right(module: Module) -> Iterator[str]:
    """Groups and time limits are those of agent.concurrency: those of asyncio miscount cancellations in Python 3.11."""
    if not module.path.startswith(("agent/", "bench/", "spark/")):
        return
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and (name := ast.unparse(node)) in REPLACED_BY_CONCURRENCY:
            yield f"{node.lineno}: {name}"
    yield from (f"{line}: {name}" for line, name in module.imports() if name in REPLACED_BY_CONCURRENCY)


def sleep_is_refused(module: Module) -> Iterator[str]:
    """The product never blocks in time.sleep; a test waits for a condition (tests/waiting.py), never for a while."""
    for node in module.nodes:
        name = called(node)
        if name == "time.sleep" or (name == "sleep" and "time.sleep" in {named for _, named in module.imports()}):
            if not module.path.startswith(SYNCHRONOUS) and not module.excused(node.lineno):
                yield f"{node.lineno}: {name}"
        elif name.endswith("asyncio.sleep") and module.path.startswith("tests/"):
            gives_way = isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if module.path != "tests/waiting.py" and not gives_way and not module.excused(node.lineno):
                yield f"{node.lineno}: {ast.unparse(node)}"


SQL = re.compile(
    r"\s*(select\s.*\sfrom\s|SELECT\s|insert\s+(or\s+\w+\s+)?into\s|update\s+(or\s+\w+\s+)?\w+\s+set\s|delete\s+from\s|"
    r"replace\s+into\s|alter\s+table\s|drop\s+(table|index|view|trigger)\s|"
    r"create\s+(temp\s+|unique\s+|virtual\s+)*(table|index|view|trigger)\s)",
    re.DOTALL | re.IGNORECASE,
)


def sql_lives_in_sql_files(module: Module) -> Iterator[str]:
    """Statements are named in .sql files; PRAGMA and BEGIN or COMMIT may stand where the connection is made."""
    if not is_product(module):
        return
    spoken = {id(docstring_node(node)) for node in module.nodes}
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken:
            statement = SQL.match(node.value)
            shouted = statement and (not statement[0].strip().startswith("SELECT") or "SELECT" in node.value)
            if shouted and not module.excused(node.lineno):
                yield f"{node.lineno}: {node.value.strip()[:40]!r}"


def nothing_names_this_machine(module: Module) -> Iterator[str]:
    """No path of a developer's machine and no registry's address stands in the project."""
    for number, line in enumerate(module.lines, 1):
        if found := MACHINE_WORDS.search(line):
            yield f"{number}: {found[0]}"


def prose_fits_the_page(module: Module) -> Iterator[str]:
    """Prose is no wider than 120 columns, in docstrings, comments and Markdown; `make format` wraps it."""
    better = wrapped(module.source, is_python=module.path.endswith(".py")).split("\n")
    yield from (
        f"{number}: {line}"
        for number, (line, new) in enumerate(zip(module.lines, better, strict=False), 1)
        if line != new
    )


RULES: tuple[Rule, ...] = (
    imports_run_downwards,
    floors_run_downwards,
    faces_are_respected,
    cores_do_no_io,
    queues_are_bounded,
    broad_except_is_the_supervisors,
    modules_open_in_prose,
    functions_fit_a_screen,
    tasks_belong_to_a_group,
    cancellations_are_counted_right,
    sleep_is_refused,
    sql_lives_in_sql_files,
    nothing_names_this_machine,
    prose_fits_the_page,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps_the_rule(rule: Rule) -> None:
    """No module of the project breaks the rule."""
    complaints = [f"{module.path}:{complaint}" for module in modules() for complaint in rule(module)]
    assert not complaints, f"{rule.__doc__}\n" + "\n".join(complaints)


def test_every_exception_is_still_needed() -> None:
    """What the tables at the top name exists: a rule's exception goes when its file goes."""
    paths = {module.path for module in modules()}
    named = {*CORES, *SUPERVISORS, *(entry.partition(":")[0] for entry in LONG_FUNCTIONS)}
    assert named <= paths, f"named in test_tidy.py, not there: {sorted(named - paths)}"


def test_layers_import_only_lower_layers() -> None:
    """KNOWS lists each part after the parts it knows, so that no two can know each other."""
    seen: set[str] = set()
    for part, known in KNOWS.items():
        assert {part_of(name) for name in known} <= seen, f"{part} knows a part that stands below it in the table"
        seen.add(part)


def test_modules_import_in_no_circle() -> None:
    """No module imports itself by way of others, what is imported for types alone included."""
    by_name = {module.name: module for module in modules() if module.path.startswith(("agent/", "bench/", "spark/"))}
    imports = {
        name: {
            found for _, other in module.imports() for found in (other, other.rpartition(".")[0]) if found in by_name
        }
        for name, module in by_name.items()
        if not module.path.endswith("/__init__.py")
    }
    finished: set[str] = set()

    def walk(name: str, path: list[str]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in finished:
            for other in sorted(imports.get(name, set()) - {name}):
                walk(other, [*path, name])
            finished.add(name)

    for name in sorted(imports):
        walk(name, [])


def test_folders_are_small() -> None:
    """No folder of the product holds more than fifteen modules beside its `__init__`."""
    held: dict[str, int] = {}
    for module in modules():
        folder, _, file = module.path.rpartition("/")
        if file != "__init__.py" and not folder.startswith("tests"):
            held[folder] = held.get(folder, 0) + 1
    crowded = {folder: count for folder, count in held.items() if count > MODULES_PER_FOLDER_MAX}
    assert not crowded


def test_a_package_has_a_face_or_is_open() -> None:
    """A package that OPEN names offers no names itself; every other one imports or lists in its `__init__` what it
    offers."""
    packages = {module.name for module in modules() if module.path.startswith("agent/") and "__init__" in module.path}
    assert {package for package in packages if not face_of(package)} == OPEN & packages


def test_faces_offer_what_others_use() -> None:
    """Each name that a face imports is used outside its package: a face is no list of all that is there."""
    faces = {one.name for one in modules() if one.path.endswith("/__init__.py") and "__all__ =" not in one.source}
    used: dict[str, set[str]] = {face: set() for face in faces if face.startswith("agent.")}
    for module in modules():
        called_here: dict[str, str] = {}  # faces imported as modules, by their names here: `local_socket.ask`
        for node in module.nodes:
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                called_here[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if not f"{module.package}.".startswith(f"{node.module}."):
                    used.get(node.module or "", set()).add(alias.name)
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.get(called_here.get(node.value.id, ""), set()).add(node.attr)
    unused = {face: sorted(names) for face, seen in used.items() if (names := face_of(face) - seen)}
    assert unused == {}


def test_cores_lean_on_nothing_that_does_io() -> None:
    """The modules of the project that a core imports, directly or indirectly, do no IO either."""
    by_name = {module.name: module for module in modules()}

    def leans_on(name: str, seen: set[str]) -> Iterator[str]:
        module = by_name.get(name) or by_name.get(name.rpartition(".")[0])
        if module is None or module.name in seen or module.path.endswith("/__init__.py"):
            return
        seen.add(module.name)
        for line, imported in module.imports():
            if imported.split(".")[0] in IO_MODULES and not module.excused(line):
                yield f"{module.path}:{line}: {imported}"
            elif part_of(imported):
                yield from leans_on(imported, seen)

    complaints = {f"{core} <- {found}" for core in CORES for found in leans_on(Module(core, "").name, set())}
    assert not complaints, "\n".join(sorted(complaints))


def test_a_declared_core_is_in_the_table() -> None:
    """A module whose docstring says "core" is in CORES."""
    saying = re.compile(r"^Core:|\. Core: no IO")
    named = {module.path for module in modules() if is_product(module) and saying.search(opening(module))}
    assert named <= set(CORES), f"not in CORES: {sorted(named - set(CORES))}"


@pytest.mark.parametrize("one, other, shared", SIBLINGS)
def test_siblings_share_file_names(one: str, other: str, shared: set[str]) -> None:
    """Two adapters of one kind use the same names for the modules that both have."""
    for folder in (one, other):
        assert shared <= {path.name for path in (ROOT / folder).glob("*.py")}, folder


@pytest.mark.parametrize("package", PACKAGES_WITH_DESIGN)
def test_packages_explain_themselves(package: str) -> None:
    """Each part's DESIGN.md has the four headings, in their order."""
    text = (ROOT / "agent" / package / "DESIGN.md").read_text("utf-8")
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    assert [heading for heading in headings if heading in DESIGN_HEADINGS] == list(DESIGN_HEADINGS)


def test_documents_name_no_machine_either() -> None:
    """Text files outside the code name no developer's path and no registry."""
    endings = {".md", ".toml", ".sql", ".txt", ".lock", ".service", ".conf", ".sh", ".csv", ""}
    complaints = []
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT)
        if SKIPPED_FOLDERS.intersection(inside.parts) or path.suffix not in endings or not path.is_file():
            continue
        text = path.read_text("utf-8", errors="replace")
        complaints += [
            f"{inside}:{complaint}" for complaint in nothing_names_this_machine(Module(inside.as_posix(), text))
        ]
    assert not complaints, "\n".join(complaints)


def test_documents_fit_the_page() -> None:
    """As the rule for modules."""
    complaints = []
    for path in sorted(ROOT.rglob("*.md")):
        inside = path.relative_to(ROOT)
        if not SKIPPED_FOLDERS.intersection(inside.parts):
            found = list(prose_fits_the_page(Module(inside.as_posix(), path.read_text("utf-8"))))
            complaints += [f"{inside}:{complaint}" for complaint in found[:1]]  # what follows it is out of step
    assert not complaints, "\n".join(complaints)


# --- the rules, applied to samples

PROSE = (
    '"""Keeps what a source said until somebody has confirmed it, and forgets nothing before that moment comes."""\n'
)
LONG = "def f():\n" + "    x = 1\n" * 75
BAD: list[tuple[Rule, str, str]] = [
    (imports_run_downwards, "agent/batch.py", "import agent.config"),
    (imports_run_downwards, "agent/config/x.py", "from agent.query import statistics"),
    (imports_run_downwards, "agent/config/x.py", "from agent.fact_store import FactStore"),
    (imports_run_downwards, "agent/settings/store.py", "from agent.fact_store import FactStore"),
    (imports_run_downwards, "agent/fact_store/writer/writer.py", "from agent.replication import sender"),
    (imports_run_downwards, "agent/fact_store/writer/writer.py", "from ...replication.sender import Sender"),
    (imports_run_downwards, "agent/health/page.py", "from agent import fact_store"),
    (imports_run_downwards, "agent/newcomer.py", ""),
    (imports_run_downwards, "spark/pyspark_bsfg/source.py", "from agent.node import compare_alone"),
    (floors_run_downwards, "agent/fact_store/log/x.py", "from agent.fact_store.writer import Writer"),
    (floors_run_downwards, "agent/fact_store/writer/x.py", "from agent.fact_store.store import FactStore"),
    (floors_run_downwards, "agent/replication/pulling/x.py", "from agent.replication.serving import Server"),
    (floors_run_downwards, "agent/replication/serving/x.py", "from agent.replication.pulling import Puller"),
    (faces_are_respected, "agent/node/x.py", "from agent.fact_store.writer.writer import Writer"),
    (faces_are_respected, "agent/fact_store/store.py", "from agent.fact_store.log.records import BatchSummary"),
    (faces_are_respected, "agent/node/x.py", "from agent.fact_store import Secret"),
    (cores_do_no_io, "agent/batch.py", "import time"),
    (cores_do_no_io, "agent/batch.py", "def f():\n    from os import path"),
    (queues_are_bounded, "agent/x.py", "import queue\nq = queue.Queue()"),
    (queues_are_bounded, "agent/x.py", "q = asyncio.Queue(maxsize=0)"),
    (queues_are_bounded, "agent/x.py", "q = Queue(-1)"),
    (queues_are_bounded, "agent/x.py", "q = SimpleQueue()"),
    (queues_are_bounded, "agent/x.py", "q = collections.deque([1, 2])"),
    (queues_are_bounded, "agent/x.py", "q: deque[int] = field(default_factory=deque)"),
    (broad_except_is_the_supervisors, "agent/x.py", "try:\n    pass\nexcept Exception:\n    pass"),
    (broad_except_is_the_supervisors, "agent/x.py", "try:\n    pass\nexcept (OSError, BaseException):\n    pass"),
    (broad_except_is_the_supervisors, "agent/x.py", "try:\n    pass\nexcept:\n    pass"),
    (broad_except_is_the_supervisors, "agent/x.py", "try:\n    pass\nexcept Exception as e:\n    raise e"),
    (broad_except_is_the_supervisors, "agent/x.py", "with contextlib.suppress(Exception):\n    pass"),
    (
        broad_except_is_the_supervisors,
        "agent/ingest/supervisor.py",
        "try:\n    pass\nexcept Exception:\n    pass\ntry:\n    pass\nexcept Exception:\n    pass",
    ),
    (modules_open_in_prose, "agent/x.py", "import ast"),
    (modules_open_in_prose, "agent/fact_store/writer/writer.py", '"""Module for the writer of the fact store."""'),
    (functions_fit_a_screen, "agent/x.py", LONG),
    (tasks_belong_to_a_group, "agent/x.py", "asyncio.create_task(f(), name='f')"),
    (tasks_belong_to_a_group, "agent/x.py", "asyncio.get_running_loop().create_task(f(), name='f')"),
    (tasks_belong_to_a_group, "agent/x.py", "group.create_task(f())"),
    (tasks_belong_to_a_group, "agent/x.py", "asyncio.ensure_future(f())"),
    (cancellations_are_counted_right, "agent/x.py", "async with asyncio.timeout(1):\n    pass"),
    (cancellations_are_counted_right, "bench/x.py", "group: asyncio.TaskGroup"),
    (cancellations_are_counted_right, "spark/x.py", "from asyncio import wait_for"),
    (sleep_is_refused, "agent/x.py", "import time\ntime.sleep(1)"),
    (sleep_is_refused, "tests/x.py", "from time import sleep\nsleep(1)"),
    (sleep_is_refused, "tests/x.py", "await asyncio.sleep(0.1)"),
    (sql_lives_in_sql_files, "agent/x.py", "q = 'SELECT 1'"),
    (sql_lives_in_sql_files, "agent/x.py", "q = f'insert or ignore into {table} values (1)'"),
    (sql_lives_in_sql_files, "agent/x.py", "q = '''\n  create table t (x)'''"),
    (nothing_names_this_machine, "agent/x.py", "open('/ro" + "ot/x')"),
    (nothing_names_this_machine, "agent/x.py", "# see https://pypi" + ".org/"),
    (prose_fits_the_page, "agent/x.py", "x = 1\n# " + "word " * 25),
    (prose_fits_the_page, "agent/x.py", 'def f():\n    """' + "word " * 25 + '"""'),
    (prose_fits_the_page, "x.md", "- " + "word " * 25),
]
GOOD: list[tuple[Rule, str, str]] = [
    (imports_run_downwards, "agent/batch.py", "from agent.message import Sample\nimport zstandard"),
    (imports_run_downwards, "agent/fact_store/writer/writer.py", "from . import reader\nfrom agent import batch"),
    (imports_run_downwards, "spark/pyspark_bsfg/source.py", "from agent.fact_store import StoreReader"),
    (floors_run_downwards, "agent/fact_store/writer/x.py", "from agent.fact_store.log import Catalog"),
    (faces_are_respected, "agent/node/x.py", "from agent.fact_store import FactStore"),
    (faces_are_respected, "agent/fact_store/log/x.py", "from agent.fact_store.log.records import BatchSummary"),
    (faces_are_respected, "agent/node/x.py", "from agent.replication.pulling import Puller"),
    (cores_do_no_io, "agent/batch.py", "import hashlib\nimport timeit"),
    (cores_do_no_io, "agent/health/http.py", "import socket"),
    (queues_are_bounded, "agent/x.py", "q = queue.Queue(QUEUE_MAX)\nd = deque([], 5)\ne = deque(maxlen=N)"),
    (queues_are_bounded, "agent/x.py", "d = deque()  # bounded by PEERS_MAX"),
    (queues_are_bounded, "agent/x.py", "# tidy: holds one entry per configured peer\nd = deque()"),
    (broad_except_is_the_supervisors, "agent/x.py", "try:\n    pass\nexcept (OSError, ValueError):\n    pass"),
    (
        broad_except_is_the_supervisors,
        "agent/ingest/supervisor.py",
        "try:\n    pass\nexcept Exception:\n    pass",
    ),
    (broad_except_is_the_supervisors, "agent/x.py", "try:\n    pass\nexcept BaseException:\n    undo()\n    raise"),
    (modules_open_in_prose, "agent/x.py", PROSE),
    (functions_fit_a_screen, "agent/x.py", 'def f():\n    """' + "words\n" * 90 + '    """\n    return 1'),
    (tasks_belong_to_a_group, "agent/x.py", "self._group.create_task(f(), name='f')"),
    (cancellations_are_counted_right, "agent/x.py", "from agent.concurrency import TaskGroup, timeout"),
    (cancellations_are_counted_right, "tests/x.py", "async with asyncio.timeout(1):\n    pass"),
    (sleep_is_refused, "agent/x.py", "await asyncio.sleep(1)"),
    (sleep_is_refused, "tests/x.py", "await asyncio.sleep(0)"),
    (sleep_is_refused, "agent/demo/x.py", "import time\ntime.sleep(1)"),
    (sql_lives_in_sql_files, "agent/x.py", "q = 'PRAGMA synchronous'\nh = 'update the settings'"),
    (sql_lives_in_sql_files, "agent/x.py", 'def f():\n    """Delete from the log."""'),
    (nothing_names_this_machine, "agent/x.py", "ETC = '/etc/bsfg'"),
    (prose_fits_the_page, "agent/x.py", "x = '" + "word " * 30 + "'"),
    (prose_fits_the_page, "agent/x.py", 'def f():\n    """Names.\n\n    name   ' + "word " * 25 + '"""'),
    (prose_fits_the_page, "x.md", "| " + "word " * 30 + "|\n\n```\n" + "word " * 30 + "\n```"),
    (prose_fits_the_page, "x.md", "[a link with words](" + "x" * 130 + ")"),
]


def sample_id(value: object) -> str:
    """A short name for a sample in pytest's output."""
    return getattr(value, "__name__", "") or (str(value).splitlines() or ["empty"])[-1][:40]


@pytest.mark.parametrize("rule, path, source", BAD, ids=sample_id)
def test_the_rule_can_fail(rule: Rule, path: str, source: str) -> None:
    """The rule complains of a sample that breaks it."""
    assert list(rule(Module(path, source)))


@pytest.mark.parametrize("rule, path, source", GOOD, ids=sample_id)
def test_the_rule_can_pass(rule: Rule, path: str, source: str) -> None:
    """The rule is silent about a sample that keeps it."""
    assert list(rule(Module(path, source))) == []


def test_every_rule_was_tried() -> None:
    """No rule is without a sample of both kinds."""
    assert set(RULES) == {rule for rule, _, _ in BAD} == {rule for rule, _, _ in GOOD}
