"""The rules of the project's code and documents that ruff and mypy do not have, as tests: what a reviewer would
otherwise have to notice.

Each rule is a function over one parsed module that yields its complaints; its docstring is the rule and is printed when
it is broken. Each is also run on a sample that breaks it and on one that does not (`BAD`, `GOOD` at the end), because a
rule that cannot fail has no effect. An exception is marked with a comment `# tidy: <reason>` on the line itself.
"""

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.syntax import syntax_tree
from tools.wrap_prose import wrapped

ROOT = Path(__file__).resolve().parents[1]

# --- the structure of the project -------------------------------------------------------------------------------------

# Layers, the lowest first: what stands in one imports only from those before it, except that parts of the first one may
# import each other. What has no layer is above all of them.
GROUND = (
    "__version__ append_contract appliance batch columns concurrency counter errors escaping file_replace file_watch "
    "lease message pages pair positions status_codes telemetry"
)
STORE = ("core", "sqlite", "read", "append", "consumers", "retention", "writer", "artifacts", "integrity", "divergence")
LAYERS: dict[str, tuple[str, ...]] = {
    "agent": (
        GROUND,
        "settings",
        "signing",
        "config fact_store health ingest replication",
        "backup hardware local_socket query",
        "client",
        "node page pyspark_bsfg",
        "demo",
        "bench",
        "cli",
    ),
    "agent.fact_store": STORE,
    "agent.query": ("scan", "latest", "sql", "export"),
    "agent.replication": ("protocol", "pki", "mqtt", "pulling serving", "broker"),
}
BESIDE_AGENT = ("appliance.", "bench.", "pyspark_bsfg.")

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

# Modules that decide, by folder: values and a time in, values out.
CORES = tuple(
    f"{folder}/{name}.py"
    for folder, names in {
        "agent": "append_contract batch columns counter escaping lease message pages positions status_codes",
        "agent/backup": "contents",
        "agent/client": "opened",
        "agent/config": "sections_text start_settings",
        "agent/fact_store/append": "acks admission checkpoint group_commit",
        "agent/fact_store/integrity": "row_checks",
        "agent/fact_store/core": (
            "artifact_reference catalog frontier held_ranges lifecycle operational_facts page_assembly records store_age"
        ),
        "agent/fact_store/read": "forecast",
        "agent/fact_store/retention": "fullness holding retention shares",
        "agent/fact_store/sqlite": "message_filter",
        "agent/hardware": "fit profile",
        "agent/health": "brief consumer_lag flash metrics problems samples verdict watchdog",
        "agent/ingest": "clock completeness gap lifecycle probe_result sampling",
        "agent/ingest/modbus": (
            "address block counters decode no_value poll_grid read_plan refusal refusal_search sweep units"
        ),
        "agent/ingest/modbus/explore": "interpretation register_scan register_text",
        "agent/ingest/modbus/line": "answers frames",
        "agent/ingest/opcua": "address decode publishing reconnect",
        "agent/ingest/opcua/events": "conditions event_fields event_message",
        "agent/ingest/opcua/explore": "tag_rows walk",
        "agent/ingest/opcua/history": "gap_fill",
        "agent/ingest/opcua/security": "certificate_facts refusal trust_list",
        "agent/ingest/opcua/subscriptions": "item_plan liveness losses monitoring",
        "agent/ingest/opcua/values": "structures variant",
        "agent/ingest/supervision": "lead_change statistics",
        "agent/ingest/tags": "change columns csv_rows example sheet tag_map templates toml_rows",
        "agent/ingest/tags/foreign": "ignition kepware neuron translation",
        "agent/node": "reload_plan",
        "agent/page": "fleet named_ends notify trend words zone_view",
        "agent/pair": "claims leadership witness",
        "agent/query/latest": "latest_rows latest_search",
        "agent/query/scan": "bounds fact_columns times",
        "agent/query/sql": "scan_plan",
        "agent/replication/broker": "config diagnosis",
        "agent/replication/mqtt": "carrier publish_packet",
        "agent/replication/pki": "rotation",
        "agent/replication/protocol": "codec definition_fetch digest_diff errors pacing token_bucket topics",
        "agent/replication/pulling": "catch_up page_check",
        "agent/replication/pulling/receiving": "log_place peer_contact pull_events receiver",
        "agent/replication/serving": ("admission appends latest_page limits outcomes page turns"),
        "agent/settings": "opcua_address peers signing sources store",
        "agent/signing": "certificates chains keys messages records x509_parts",
        "appliance": "packages sbom",
        "spark/pyspark_bsfg": "columns dictionary options packed pruning ranges schema values",
        "spark/pyspark_bsfg/jobs": "clean gaps rollup settings",
        "spark/pyspark_bsfg/landing": "identities manifest",
        "spark/pyspark_bsfg/streaming": "offsets options",
        "spark/pyspark_bsfg/transports": "ports proofs range_pages reading",
    }.items()
    for name in names.split()
)
IO_MODULES = {
    *("asyncio", "concurrent", "multiprocessing", "os", "queue", "random", "secrets", "select", "selectors", "signal"),
    *("socket", "sqlite3", "ssl", "subprocess", "threading", "time", "asyncua", "paho", "pymodbus"),
}

# Rooms that may be deleted without touching the core, and who enters them.
OPTIONAL_ROOMS = {
    "agent.demo": ("agent.cli.demo", "bench"),
    "agent.hardware": ("agent.cli.hardware",),
    "agent.ingest.tags.foreign": ("agent.cli.tags.import_list",),
    "agent.cli.prepare.setup": (),
}

FUNCTION_LINES_MAX = 70
EXCUSE = re.compile(r"# (tidy: |bounded by )\w+")

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
        return syntax_tree(self.source, self.path)

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


@functools.cache
def face_of(package: str) -> frozenset[str]:
    """The names that a package offers: its `__all__`, or else all that its `__init__` imports from inside it."""
    file = ROOT / package.replace(".", "/") / "__init__.py"
    tree = syntax_tree(file.read_text("utf-8") if file.exists() else "")
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


# --- the rules --------------------------------------------------------------------------------------------------------


def place_in(package: str, name: str) -> str:
    """The part of a package in which a dotted name stands; empty where it stands outside."""
    name = f"agent.{name}" if name.startswith(BESIDE_AGENT) else name
    return name.removeprefix(f"{package}.").partition(".")[0] if name.startswith(f"{package}.") else ""


def imports_run_downwards(module: Module) -> Iterator[str]:
    """A part imports only from the layers below its own (LAYERS)."""
    for package, layers in LAYERS.items():
        heights = {part: height for height, layer in enumerate(layers) for part in layer.split()}
        own = place_in(package, module.name)
        height = heights.get(own, len(layers))
        for line, name in module.imports() if own else ():
            part = place_in(package, name)
            other = heights.get(part, len(layers))
            if part not in {"", own} and (other > height or 0 < other == height < len(layers)):
                yield f"{line}: {module.name} imports {name}"


def faces_are_respected(module: Module) -> Iterator[str]:
    """What lies in another package is imported from the outermost package around it that has a face, by a name
    that its face offers. A package whose `__init__` imports nothing from inside has no face."""
    if not module.path.startswith(("agent/", "spark/", "bench/")):
        return
    for node in module.nodes:
        source = node.module or "" if isinstance(node, ast.ImportFrom) and not node.level else ""
        if not isinstance(node, ast.ImportFrom) or not source.startswith("agent.") or source.startswith(ENTERED):
            continue
        words = source.split(".")
        packages = [".".join(words[:count]) for count in range(2, len(words) + 1)]
        foreign = [name for name in packages if face_of(name) and not f"{module.package}.".startswith(f"{name}.")]
        if not foreign:
            continue
        if source != foreign[0]:
            yield f"{node.lineno}: imports {source} past {foreign[0]}"
        elif missing := sorted({alias.name for alias in node.names} - face_of(foreign[0])):
            yield f"{node.lineno}: {foreign[0]} does not offer {', '.join(missing)}"


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


def everything_is_caught_by_the_supervisor(module: Module) -> Iterator[str]:
    """Only the supervisor of a source catches Exception; elsewhere it is caught to clean up, and raised again. (What
    nothing is done about, and a bare `except`, ruff finds.)"""
    if not is_product(module) or module.path == "agent/ingest/supervision/supervisor.py":
        return
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            raises_again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            caught = [node.type] if not raises_again else []
        else:
            caught = node.args if isinstance(node, ast.Call) and called(node).endswith("suppress") else []
        if {"Exception", "BaseException"} & {name for kind in caught for name in re.findall(r"\w+", ast.unparse(kind))}:
            yield f"{node.lineno}: catches everything"


def functions_fit_a_screen(module: Module) -> Iterator[str]:
    """A function has at most seventy lines, its docstring not counted."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = docstring_node(node)
            spoken = (docstring.end_lineno or 0) - docstring.lineno + 1 if docstring else 0
            length = (node.end_lineno or 0) - node.lineno + 1 - spoken
            if length > FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name} has {length} lines"


def tasks_belong_to_a_group(module: Module) -> Iterator[str]:
    """A task is created by a TaskGroup, which is held in a name that ends in `group`, and has a name itself. (The ways
    past a group that asyncio offers, ruff finds.)"""
    for node in module.nodes if is_product(module) else ():
        receiver, _, verb = called(node).rpartition(".")
        if isinstance(node, ast.Call) and verb == "create_task" and not module.excused(node.lineno):
            if not receiver.lower().endswith("group"):
                yield f"{node.lineno}: {receiver}.create_task is no TaskGroup's"
            if not any(word.arg == "name" for word in node.keywords):
                yield f"{node.lineno}: a task without a name"


def conditions_are_waited_for(module: Module) -> Iterator[str]:
    """A test waits for a condition (tests/waiting.py), never for a while."""
    if not module.path.startswith("tests/") or module.path == "tests/waiting.py":
        return
    for node in module.nodes:
        if isinstance(node, ast.Call) and called(node).rpartition(".")[2] == "sleep":
            gives_way = node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if not gives_way and not module.excused(node.lineno):
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
    faces_are_respected,
    queues_are_bounded,
    everything_is_caught_by_the_supervisor,
    functions_fit_a_screen,
    tasks_belong_to_a_group,
    conditions_are_waited_for,
    sql_lives_in_sql_files,
    nothing_names_this_machine,
    prose_fits_the_page,
)
OF_TEXT = (nothing_names_this_machine, prose_fits_the_page)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps_the_rule(rule: Rule) -> None:
    """No module of the project breaks the rule."""
    complaints = [f"{module.path}:{complaint}" for module in modules() for complaint in rule(module)]
    assert not complaints, f"{rule.__doc__}\n" + "\n".join(complaints)


def test_documents_keep_the_rules_of_text() -> None:
    """Other text files name no machine either, and Markdown fits the page."""
    endings = {".md", ".toml", ".sql", ".txt", ".lock", ".service", ".conf", ".sh", ".csv", ""}
    complaints = []
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT)
        if SKIPPED_FOLDERS.intersection(inside.parts) or path.suffix not in endings or not path.is_file():
            continue
        text = Module(inside.as_posix(), path.read_text("utf-8", errors="replace"))
        for rule in OF_TEXT if path.suffix == ".md" else OF_TEXT[:1]:
            complaints += [f"{inside}:{complaint}" for complaint in list(rule(text))[:1]]
    assert not complaints, "\n".join(complaints)


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


@pytest.mark.parametrize("room, users", OPTIONAL_ROOMS.items(), ids=OPTIONAL_ROOMS)
def test_optional_rooms_are_entered_by_their_commands_only(room: str, users: tuple[str, ...]) -> None:
    """No part of the core imports them."""
    outside = [module for module in modules() if not module.path.startswith("tests/")]
    outside = [
        module for module in outside if not any(f"{module.name}.".startswith(f"{user}.") for user in (room, *users))
    ]
    assert [
        module.path for module in outside for _, name in module.imports() if f"{name}.".startswith(f"{room}.")
    ] == []


def test_folders_are_small() -> None:
    """No folder of the product holds more than fifteen modules beside its `__init__`."""
    held = Counter(
        module.path.rpartition("/")[0]
        for module in modules()
        if not module.path.startswith("tests/") and not module.path.endswith("/__init__.py")
    )
    assert not {folder: count for folder, count in held.items() if count > MODULES_PER_FOLDER_MAX}


def test_faces_offer_what_others_use() -> None:
    """Each name that a face imports is used outside its package: a face is no list of all that is there."""
    faces = {
        module.name for module in modules() if module.path.endswith("/__init__.py") and "__all__ =" not in module.source
    }
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
    """A core, and the modules of the project that it imports, directly or indirectly, import neither a clock, chance, a
    file, a socket, a thread nor an event loop."""
    by_name = {module.name: module for module in modules()}

    def leans_on(name: str, seen: set[str]) -> Iterator[str]:
        module = by_name.get(name) or by_name.get(name.rpartition(".")[0])
        if module is None or module.name in seen or module.path.endswith("/__init__.py"):
            return
        seen.add(module.name)
        for line, imported in module.imports():
            if imported.split(".")[0] in IO_MODULES and not module.excused(line):
                yield f"{module.path}:{line}: {imported}"
            else:
                yield from leans_on(imported, seen)

    cores = {path: Module(path, "").name for path in CORES}
    assert [path for path, name in cores.items() if name not in by_name] == []
    complaints = {f"{path} <- {found}" for path, name in cores.items() for found in leans_on(name, set())}
    assert not complaints, "\n".join(sorted(complaints))


def test_a_declared_core_is_in_the_table() -> None:
    """A module whose docstring says "core" is in CORES."""
    saying = re.compile(r"^Core:|\. Core: no IO")
    product = [module for module in modules() if is_product(module)]
    named = {module.path for module in product if saying.search(ast.get_docstring(module.tree) or "")}
    assert named <= set(CORES), f"not in CORES: {sorted(named - set(CORES))}"


@pytest.mark.parametrize("package", PACKAGES_WITH_DESIGN)
def test_packages_explain_themselves(package: str) -> None:
    """Each part's DESIGN.md has the four headings, in their order."""
    text = (ROOT / "agent" / package / "DESIGN.md").read_text("utf-8")
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    assert [heading for heading in headings if heading in DESIGN_HEADINGS] == list(DESIGN_HEADINGS)


# --- the rules, applied to samples

LONG = "def f():\n" + "    x = 1\n" * 75
BAD: list[tuple[Rule, str, str]] = [
    (imports_run_downwards, "agent/batch.py", "import agent.config"),
    (imports_run_downwards, "agent/settings/store.py", "from agent.fact_store import FactStore"),
    (imports_run_downwards, "agent/fact_store/writer/writer.py", "from ...replication.sender import Sender"),
    (imports_run_downwards, "agent/health/verdict.py", "from agent import fact_store"),
    (imports_run_downwards, "spark/pyspark_bsfg/source.py", "from agent.node import compare_alone"),
    (imports_run_downwards, "agent/node/node.py", "import bench.lag"),
    (imports_run_downwards, "agent/fact_store/core/x.py", "from agent.fact_store.writer import Writer"),
    (imports_run_downwards, "agent/fact_store/writer/x.py", "from agent.fact_store.store import FactStore"),
    (imports_run_downwards, "agent/replication/serving/x.py", "from agent.replication.pulling import Puller"),
    (faces_are_respected, "agent/node/x.py", "from agent.fact_store.writer.writer import Writer"),
    (faces_are_respected, "agent/fact_store/store.py", "from agent.fact_store.core.records import BatchSummary"),
    (faces_are_respected, "agent/node/x.py", "from agent.fact_store import Secret"),
    (queues_are_bounded, "agent/x.py", "import queue\nq = queue.Queue()"),
    (queues_are_bounded, "agent/x.py", "q = asyncio.Queue(maxsize=0)"),
    (queues_are_bounded, "agent/x.py", "q = SimpleQueue()"),
    (queues_are_bounded, "agent/x.py", "q = collections.deque([1, 2])"),
    (queues_are_bounded, "agent/x.py", "q: deque[int] = field(default_factory=deque)"),
    (everything_is_caught_by_the_supervisor, "agent/x.py", "try:\n    f()\nexcept (OSError, Exception):\n    log()"),
    (everything_is_caught_by_the_supervisor, "agent/x.py", "with contextlib.suppress(Exception):\n    pass"),
    (functions_fit_a_screen, "agent/x.py", LONG),
    (tasks_belong_to_a_group, "agent/x.py", "asyncio.get_running_loop().create_task(f(), name='f')"),
    (tasks_belong_to_a_group, "agent/x.py", "group.create_task(f())"),
    (conditions_are_waited_for, "tests/x.py", "from time import sleep\nsleep(1)"),
    (conditions_are_waited_for, "tests/x.py", "await asyncio.sleep(0.1)"),
    (sql_lives_in_sql_files, "agent/x.py", "q = f'insert or ignore into {table} values (1)'"),
    (sql_lives_in_sql_files, "agent/x.py", "q = '''\n  create table t (x)'''"),
    (nothing_names_this_machine, "agent/x.py", "open('/ro" + "ot/x')"),
    (nothing_names_this_machine, "agent/x.py", "# see https://pypi" + ".org/"),
    (prose_fits_the_page, "agent/x.py", "x = 1\n# " + "word " * 25),
    (prose_fits_the_page, "x.md", "- " + "word " * 25),
]
GOOD: list[tuple[Rule, str, str]] = [
    (imports_run_downwards, "agent/batch.py", "from agent.message import Sample\nimport zstandard"),
    (imports_run_downwards, "agent/fact_store/writer/writer.py", "from . import reader\nfrom agent import batch"),
    (imports_run_downwards, "agent/fact_store/writer/x.py", "from agent.fact_store.core import Catalog"),
    (imports_run_downwards, "agent/fact_store/store.py", "from agent.fact_store.other import f"),
    (faces_are_respected, "agent/fact_store/core/x.py", "from agent.fact_store.core.records import BatchSummary"),
    (faces_are_respected, "agent/node/x.py", "from agent.replication.pulling import Puller"),
    (queues_are_bounded, "agent/x.py", "q = queue.Queue(QUEUE_MAX)\nd = deque([], 5)\ne = deque(maxlen=N)"),
    (queues_are_bounded, "agent/x.py", "d = deque()  # bounded by PEERS_MAX"),
    (queues_are_bounded, "agent/x.py", "# tidy: holds one entry per configured peer\nd = deque()"),
    (
        everything_is_caught_by_the_supervisor,
        "agent/x.py",
        "try:\n    f()\nexcept OSError:\n    f()\nexcept BaseException:\n    undo()\n    raise",
    ),
    (functions_fit_a_screen, "agent/x.py", 'def f():\n    """' + "words\n" * 90 + '    """\n    return 1'),
    (tasks_belong_to_a_group, "agent/x.py", "self._group.create_task(f(), name='f')"),
    (conditions_are_waited_for, "tests/x.py", "await asyncio.sleep(0)"),
    (sql_lives_in_sql_files, "agent/x.py", "q = 'PRAGMA synchronous'\nh = 'update the settings'"),
    (sql_lives_in_sql_files, "agent/x.py", 'def f():\n    """Delete from the log."""'),
    (nothing_names_this_machine, "agent/x.py", "ETC = '/etc/bsfg'"),
    (prose_fits_the_page, "agent/x.py", "x = '" + "word " * 30 + "'"),
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
