# The commands for developers. Every target sets up what it needs, in .venv and with Debian's packages (tools/setup),
# and prints nothing unless a check fails. `make test` begins with the interpreter.

SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
.SILENT:

# The interpreter of the gateway: the one of Debian. Another: make PYTHON=/path/to/python3.13 test test-long
PYTHON ?= /usr/bin/python3
VENV := .venv/bin

export PYTHON
# Debian keeps mosquitto in /usr/sbin, out of a user's PATH.
export PATH := $(PATH):/usr/sbin:/sbin
# Only in debug mode does asyncio report coroutines never awaited, a blocked loop and calls from the wrong thread.
test test-long quick: export PYTHONASYNCIODEBUG = 1
# Sets have the same order in each run.
test quick: export PYTHONHASHSEED = 0
# The agent relies on its asserts and refuses to run without them, so the variable must not be inherited.
unexport PYTHONOPTIMIZE
# Each of the hundreds of processes that the tests start would compile the agent anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo quick test test-long interpreter sim soak fuzz fuzz-paths attacks spark-cluster-test spark-stream-test docs bundle appliance-test stall mutants core-mutants style types pytest format bench lock clean venv system foreign

help:
	echo 'make demo           three zones, a broker and a plant on this machine; KEEP=1 leaves them running'
	echo 'make quick          style, types and the tests of what differs from the last commit, within a minute'
	echo 'make test           style, types, all tests without a server and short ones with: this decides about a change'
	echo 'make test-long      the tests with real servers, brokers, nodes and Spark, half an hour; TEST=path for some'
	echo 'make sim            the seeded tests at full length, about an hour; SEED=n replays one (docs/developers/tests.md)'
	echo 'make soak           three zones, disturbed for an hour: do their nodes grow; MINUTES=n'
	echo 'make fuzz           every decoder of foreign bytes, a million inputs each, about 20 minutes; NAME=batch, RUNS=n'
	echo 'make fuzz-paths     forged pages into a puller, forged requests into a server, 200,000 in all, about 15 minutes'
	echo 'make attacks        the attacks of a hostile zone at full length (tests/security); TEST=name for some'
	echo 'make spark-cluster-test   a master, two workers, one of them killed, and a node, or three, over MQTT; FACTS=n, 500,000'
	echo 'make spark-stream-test    the jobs killed with their JVM at the worst moments, and docs/how-to/analyse.md; TEST=name for some'
	echo 'make mutants        known bugs one by one, then changes of the cores; tests must catch each; GROUP=store, ID=name for some'
	echo 'make core-mutants   only the changes of the cores, some hours; CORES="agent/lease.py ..." for some'
	echo 'make stall          tests while their own process is suspended at random moments; TEST=path'
	echo 'make style types    only these; "make format" repairs what it can'
	echo 'make bench          all benchmarks, a JSON object each; NAME=append for one'
	echo 'make docs           the pages as a static site that needs no network, dist/docs/index.html'
	echo 'make bundle         offline bundles and .deb packages for gateways, into dist/; TARGET=debian12-amd64 for one'
	echo 'make appliance-test installs them on clean Debian roots, sends a day of traffic; as root, an hour; TEST=name for some'
	echo 'make lock           updates requirements.lock from the ranges in pyproject.toml'
	echo 'make clean          removes generated files'

demo: system
	$(VENV)/bsfg demo $(if $(KEEP),--keep)

# Types are checked in parallel with the tests and finish long before them, so the last line is the summary of pytest.
test: interpreter style
	$(MAKE) -j2 types pytest

interpreter: venv
	$(VENV)/python -c 'import os, sys; print("Python", sys.version.split()[0], os.path.realpath(sys._base_executable))'

style: venv
	$(VENV)/ruff check --quiet
	$(VENV)/ruff format --quiet --check || { echo 'some files are not formatted: make format' >&2; exit 1; }

types: venv
	$(VENV)/mypy --no-error-summary

# What is not marked `system`, and some that is (docs/developers/tests.md). A third of the time, tests wait for a disk, so three
# processes share two cores. PYTEST=-n0: only one.
pytest: foreign
	$(VENV)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m 'not system or short' $(PYTEST)

# Half of the time, these wait for a broker or a clock, so four processes share two cores.
test-long: interpreter foreign
	$(VENV)/python -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder -m system $(PYTEST) $(TEST)

# mypy remembers what it has checked, so both together take some seconds.
quick: style types
	$(VENV)/python -m pytest -q -n 2 --dist loadfile -m 'not system and not sim' $$($(VENV)/python tools/touched_tests.py) $(PYTEST)

# No time limit per test; the output of each test (seed, figures) is shown at the end.
sim: foreign
	SIM=1 $(VENV)/python -m pytest -q -rP -m sim -o timeout=0 -o faulthandler_timeout=0 $(PYTEST)

soak: system
	SIM=1 MINUTES=$(or $(MINUTES),60) $(VENV)/python -m pytest -q -s -n0 tests/system/test_soak.py

# Coverage-guided. The corpus, the log and the inputs that break a decoder stay in build/fuzz.
fuzz: venv
	$(VENV)/python -c 'import atheris' 2>/dev/null || \
		$(VENV)/python -m pip install --quiet --no-build-isolation -c <(grep -o '^[^ ]*==[^ ]*' requirements.lock) -e '.[fuzz]'
	for name in $(or $(NAME),request answer publish batch columns definition json); do \
		mkdir -p build/fuzz/$$name; echo "$$name: $(or $(RUNS),1000000) inputs"; \
		$(VENV)/python -m tests.fuzz.harness $$name build/fuzz/$$name \
			-runs=$(or $(RUNS),1000000) $(if $(SEED),-seed=$(SEED)) >build/fuzz/$$name/log 2>&1 \
			|| { tail -n 40 build/fuzz/$$name/log; exit 1; }; \
		grep -h 'stat::' build/fuzz/$$name/log; \
	done

# Prints the seed; SEED=n repeats a run, except for the timing of threads and disk.
fuzz-paths: venv
	$(VENV)/python -m tests.fuzz.paths $(or $(RUNS),200000) $(SEED)

attacks: foreign
	SIM=1 $(VENV)/python -m pytest -q -rP tests/security -o timeout=0 -o faulthandler_timeout=0 $(if $(TEST),-k $(TEST))

# No time limit, because a driver may need minutes to start on a busy machine.
spark-stream-test: system
	SIM=1 $(VENV)/python -m pytest -q -rP tests/spark/streaming tests/spark/jobs -o timeout=0 -o faulthandler_timeout=0 $(if $(TEST),-k $(TEST))

# Takes a minute or two, and about 3 GB of memory.
spark-cluster-test: system
	$(VENV)/python -c 'import grpc_status' 2>/dev/null || \
		$(VENV)/python -m pip install --quiet --no-build-isolation -c <(grep -o '^[^ ]*==[^ ]*' requirements.lock) -e '.[spark-connect]'
	SPARK_CLUSTER=1 $(VENV)/python -m pytest -q -rP tests/spark/test_{first_read,cluster,submit,connect,nodes}.py -o timeout=0 -o faulthandler_timeout=0

# pytest is suspended at random moments, as on a machine that stalls; the programs under test continue.
stall: foreign
	$(VENV)/python -m tests.support.stalls $(or $(TEST),tests/foreign/modbus tests/ingest)

# Each mutant is a bug in a copy of the tree, with the tests that must detect it (tests/mutants). Cores are changed by
# mutmut: some hours, every night.
mutants: system
	$(VENV)/python -m tests.mutants.run $(if $(GROUP),--group $(GROUP)) $(if $(ID),--id $(ID))
	$(if $(GROUP)$(ID),,$(MAKE) core-mutants)

core-mutants: venv
	$(VENV)/python -c 'import mutmut' 2>/dev/null || \
		$(VENV)/python -m pip install --quiet --no-build-isolation -c <(grep -o '^[^ ]*==[^ ]*' requirements.lock) -e '.[mutants]'
	$(VENV)/python -m tests.mutants.cores $(CORES)

format: venv
	$(VENV)/ruff check --quiet --fix
	$(VENV)/ruff format --quiet
	git ls-files -co --exclude-standard '*.md' '*.py' | xargs $(VENV)/python tools/wrap_prose.py

# Drains a tenth of a day; NAME=drain drains a whole day.
bench: system
	for name in $(or $(NAME),append replicate lag pair fetch 'drain --facts 8640000' hostile growth ids producers retention sql wear ingest 'ingest --source modbus' spark stream); do \
		$(VENV)/bsfg bench $$name --json || exit 1; \
	done

# Fails if a link is dead.
docs: venv
	$(VENV)/python -m tools.draw_lifecycle
	$(VENV)/python -m tools.draw_reference
	$(VENV)/python -m sphinx -q -W --keep-going -b html -d build/docs -c docs . dist/docs
	SITE=dist/docs $(VENV)/python -m pytest -q -n0 tests/docs/test_site.py

# Wheels are downloaded once, into build/appliance.
bundle: venv
	$(VENV)/python -m appliance.build $(if $(TARGET),--target $(TARGET))

# On minimal Debian without a network, partly booted with systemd (tests/appliance). Tests that cannot run are skipped,
# with the reason.
appliance-test: foreign bundle
	APPLIANCE=1 $(VENV)/python -m pytest -q -rs tests/appliance -o timeout=0 -o faulthandler_timeout=0 $(if $(TEST),-k $(TEST)) $(PYTEST)

lock:
	tools/lock

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv:
	tools/setup venv

system:
	tools/setup system

foreign:
	tools/setup foreign
