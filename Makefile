# One door for whoever works on bsfg. Every target sets up what it needs by itself, in .venv and with Debian's packages
# (tools/setup), and is quiet unless something is wrong.

SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
.SILENT:

PYTHON ?= python3
VENV := .venv/bin

export PYTHON
# Debian keeps mosquitto in /usr/sbin, out of a user's PATH.
export PATH := $(PATH):/usr/sbin:/sbin
# Coroutines never awaited, loops blocked, calls from the wrong thread: asyncio says so only in debug mode.
test: export PYTHONASYNCIODEBUG = 1
# Our own mistakes are asserts; an interpreter without them is refused, so none may be inherited.
unexport PYTHONOPTIMIZE

.PHONY: help demo test sim fuzz mutants style types pytest format bench lock clean venv system foreign

help:
	echo 'make demo           three zones, a broker and a plant on this machine; KEEP=1 leaves them running'
	echo 'make test           style, types and every test'
	echo 'make sim            the seeded tests at full length, about an hour; SEED=n replays one (docs/reference/tests.md)'
	echo 'make fuzz           every decoder of a peer'"'"'s bytes, a million inputs each, some 20 minutes; NAME=batch for one, RUNS=n'
	echo 'make mutants        breaks the product on purpose, bug by bug: each must be caught; GROUP=store, ID=name for some'
	echo 'make style types    those alone; "make format" repairs what it can'
	echo 'make bench          the benchmarks, a JSON object each; NAME=append for one'
	echo 'make lock           requirements.lock anew from the ranges in pyproject.toml'
	echo 'make clean          removes what set-up and tools made'

demo: system
	$(VENV)/bsfg demo $(if $(KEEP),--keep)

# The last line is pytest's summary.
test: style types pytest

style: venv
	$(VENV)/ruff check --quiet
	$(VENV)/ruff format --quiet --check || { echo 'some files are not formatted: make format' >&2; exit 1; }

types: venv
	$(VENV)/mypy --no-error-summary

# Half of the time tests wait for a disk, a broker or a clock: two processes share the files. PYTEST=-n0 runs them in one.
pytest: foreign
	$(VENV)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST)

# No limit of time for one test; what each printed (its seed, its figures) is shown at the end.
sim: foreign
	SIM=1 $(VENV)/python -m pytest -q -rP -m sim -o timeout=0 -o faulthandler_timeout=0 $(PYTEST)

# Coverage-guided; the corpus and whatever broke a decoder stay in build/fuzz. What is printed on the way goes to a log beside them.
fuzz: venv
	$(VENV)/python -c 'import atheris' 2>/dev/null || $(VENV)/python -m pip install --quiet --no-build-isolation -c requirements.lock -e '.[fuzz]'
	for name in $(or $(NAME),request answer publish batch columns definition json); do \
		mkdir -p build/fuzz/$$name; echo "$$name: $(or $(RUNS),1000000) inputs"; \
		$(VENV)/python -m tests.fuzz.harness $$name build/fuzz/$$name -runs=$(or $(RUNS),1000000) $(if $(SEED),-seed=$(SEED)) \
			>build/fuzz/$$name/log 2>&1 || { tail -n 40 build/fuzz/$$name/log; exit 1; }; \
		grep -h 'stat::' build/fuzz/$$name/log; \
	done

# Each mutant is a bug in a copy of the tree, with the tests that must notice it (tests/mutants).
mutants: system
	$(VENV)/python -m tests.mutants.run $(if $(GROUP),--group $(GROUP)) $(if $(ID),--id $(ID))

format: venv
	$(VENV)/ruff check --quiet --fix
	$(VENV)/ruff format --quiet

# A tenth of a day is drained here; NAME=drain for the whole one.
bench: system
	for name in $(or $(NAME),append replicate lag fetch 'drain --facts 8640000' growth ids producers sql ingest); do $(VENV)/bsfg bench $$name --json || exit 1; done

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
