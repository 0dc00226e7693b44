# Every target does its own set-up: a virtual environment in .venv, the packages of pyproject.toml, the compiled
# extensions. The stamps inside .venv remember what was done, so that only what changed is done again.
#
#   PYTHON=/path/to/python3   the interpreter .venv is made from (otherwise the first fit one on PATH)
#   KREPLOG_DEBUG=1           extensions with bounds checks and line tracing
#   ARGS="..."                more arguments for pytest, the demo, the benchmarks or the wheels

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check
EXTRAS := all,bench,demo,dev,docs
FLAVOUR := $(if $(filter-out 0,$(KREPLOG_DEBUG)),debug,release)

MADE := $(VENV)/.kreplog-made
INSTALLED := $(VENV)/.kreplog-installed
BUILT := $(VENV)/.kreplog-built-$(FLAVOUR)
MICRO := benchmarks/results/micro
NATIVE := $(foreach suffix,pyx pxd pyi h,$(wildcard kreplog/_native/*.$(suffix)))

FIT := import ensurepip, os, sys, sysconfig, venv; sys.exit(sys.version_info < (3, 11) or \
	sys.implementation.name != "cpython" or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))

LOCKED_PIP = $(PIP) install --quiet --no-deps --require-hashes
# Built with the Cython of .venv, not a temporary one, so that later builds see nothing changed.
BUILD_REQUIRES := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")

.PHONY: help setup test test-long hostile audit lock interop lint docs demo spark-cluster bench bench-micro bench-cluster wheel clean distclean

help:
	@echo "make test       lint, type checks and tests"
	@echo "make test-long  the tests marked long: hundreds of kills, cuts and restarts under load"
	@echo "make hostile    what outsiders may try: the tests of tests/hostile, which make test runs too"
	@echo "make audit      known vulnerabilities of the packages in .venv, by pip-audit (needs the Internet; else: Error 3)"
	@echo "make interop    tests against a real Apache Kafka, which Maven gets (needs Java 17 and 5 minutes)"
	@echo "make docs       the documentation, into build/docs; a warning is an error"
	@echo "make demo       336,776 real flights live through brokers and Spark; a driver and a broker are killed"
	@echo "make spark-cluster   Spark on three workers that share no log directory, from the wheel (needs root and Java 17)"
	@echo "make bench      kreplog against its ceiling and its peers"
	@echo "make bench-micro   single calls; saves each run, compares it with the last, draws both"
	@echo "make bench-cluster   three brokers against three of a real Apache Kafka (needs Java 17, Maven, 15 minutes)"
	@echo "make lock       write the locked test environment, versions with hashes, of what is in .venv; make setup LOCKED=1 installs it"
	@echo "make lint       ruff, mypy --strict, cython-lint"
	@echo "make wheel      sdist and wheel into dist/, for any machine of this kind; ARGS=\"--python ...\" for other Pythons"
	@echo "make clean      remove what was built; make distclean: .venv too"

setup: $(BUILT)

# The tests run even where lint has something to say; either of them fails the target. Tests with brokers wait for two
# fifths of the time, which ARGS=-n3 uses; but pauses of an event loop, which tests/hostile measures, grow with the load.
# tests/conftest.py groups the tests of a worker; ARGS=-n0 runs all in one process.
test: $(BUILT)
	@$(MAKE) --no-print-directory lint; linted=$$?; \
	$(RUN) -m pytest -n 2 --max-worker-restart=2 $(ARGS); tested=$$?; \
	if [ $$linted -ne 0 ]; then echo "make lint has failed: see above the tests" >&2; fi; \
	exit $$((tested ? tested : linted))

test-long: $(BUILT)
	@$(RUN) -m pytest -m long -n 2 -o faulthandler_timeout=3600 $(ARGS)

hostile: $(BUILT)
	@$(RUN) -m pytest tests/hostile $(ARGS)

audit: $(INSTALLED)
	@$(RUN) -m tests.packaging.audit $(ARGS)

lock: $(INSTALLED)
	@$(RUN) -m tests.packaging.lock

interop: $(BUILT)
	@$(RUN) -m pytest tests/interop $(ARGS)

lint: $(BUILT)
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cython-lint kreplog benchmarks

docs: $(BUILT)
	@$(RUN) -m sphinx -q -b html -W --keep-going -n -d build/doctrees docs build/docs
	@echo "The documentation is in build/docs/index.html"

demo: $(BUILT)
	@$(RUN) spark/jobs/demo.py $(ARGS)

spark-cluster: $(BUILT)
	@$(RUN) -m tests.spark.cluster $(ARGS)

bench: $(BUILT)
	@$(RUN) -m pytest -q benchmarks/micro
	@$(RUN) -m benchmarks.run $(ARGS)

bench-micro: $(BUILT)
	@$(RUN) -m pytest -q benchmarks/micro --benchmark-storage=$(MICRO) --benchmark-autosave --benchmark-compare \
	    --benchmark-group-by=group --benchmark-columns=median,iqr,ops,rounds --benchmark-histogram=$(MICRO)/histogram $(ARGS)

bench-cluster: $(BUILT)
	@$(RUN) -m benchmarks.bench_cluster $(ARGS)

wheel: $(INSTALLED)
	@$(RUN) -m tests.packaging $(ARGS)

clean:
	rm -rf build benchmarks/build dist *.egg-info .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f kreplog/_native/*.so kreplog/_native/*.c $(VENV)/.kreplog-built-*
	find benchmarks kreplog spark tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)

# A .venv made by hand is kept as long as its Python fits; any other is made anew.
$(MADE):
	@if $(RUN) -c 'import pip; $(FIT)' 2>/dev/null; then touch $@; exit 0; fi; \
	command -v $${CC:-cc} >/dev/null || { \
	    echo "kreplog needs a C compiler. On Debian or Ubuntu: apt-get install build-essential" >&2; exit 1; }; \
	for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    if $$python -c '$(FIT)' 2>/dev/null; then \
	        echo "Making $(VENV) from $$(command -v $$python) ($$($$python --version))"; \
	        $$python -m venv --clear $(VENV) && touch $@; exit; \
	    fi; \
	done; \
	echo "kreplog needs CPython 3.11 or newer with venv and its C headers; none is on PATH." >&2; \
	echo "On Debian or Ubuntu: apt-get install python3 python3-venv python3-dev. Or: make PYTHON=/path/to/python3" >&2; \
	exit 1

# LOCKED=1 installs what tests/packaging/locked.txt has, and nothing else, as the tests of a release have it.
# Spark runs on the machine's Java where that is 17 or newer, and on one from PyPI where it is not.
$(INSTALLED): $(MADE) pyproject.toml
	@if [ -n "$(LOCKED)" ]; then \
	    grep '^setuptools==' tests/packaging/locked.txt | $(LOCKED_PIP) --requirement /dev/stdin && \
	    $(LOCKED_PIP) --no-build-isolation --requirement tests/packaging/locked.txt && \
	    $(PIP) install --quiet --no-deps --no-build-isolation --editable . && touch $@; exit; \
	fi; \
	extras=$(EXTRAS),spark-jvm; \
	for java in "$${JAVA_HOME:-/nonexistent}/bin/java" java; do \
	    major=$$($$java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'); \
	    if [ "$${major:-0}" -ge 17 ]; then extras=$(EXTRAS); fi; \
	done; \
	echo "Installing kreplog[$$extras] into $(VENV) (a few minutes the first time)"; \
	$(RUN) -c '$(BUILD_REQUIRES)' | $(PIP) install --quiet --requirement /dev/stdin && \
	$(PIP) install --quiet --no-build-isolation --editable ".[$$extras]"
	@touch $@

$(BUILT): $(INSTALLED) setup.py $(NATIVE)
	@$(RUN) setup.py --quiet build_ext --inplace
	@rm -f $(VENV)/.kreplog-built-*
	@touch $@
