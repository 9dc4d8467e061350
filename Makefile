# make run   prepares everything and starts the app        make test   the whole suite
# make check lint, types and fast tests                    make bench  speed and memory
# Every step leaves a stamp in .venv, so that the second time nothing is done twice.

PYTHON ?= python3
PORT ?= 8501
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_QUIET := 2

.DEFAULT_GOAL := help
.PHONY: help setup run test check bench tools clean

help:
	@sed -n 's/^# //p' Makefile | head -2

setup: $(STAMPS)/run

run: setup
	@$(BIN)/python -m core prepare
	@$(BIN)/streamlit run app.py --server.port $(PORT)

test: $(STAMPS)/dev $(STAMPS)/browser
	@$(BIN)/python -m core prepare
	@$(BIN)/python -m pytest

check: $(STAMPS)/dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q -m "not browser and not models and not slow and not gpu"

bench: setup
	@$(BIN)/python -m core prepare
	@$(BIN)/python -m tests.benchmarks.bench

clean:
	@rm -rf $(VENV)

tools:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "Python was not found as '$(PYTHON)'. Install Python 3.11 or newer, or name it:" \
	       "make run PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$$($(PYTHON) --version) is too old: Python 3.11 or newer is needed. Name a newer one:" \
	       "make run PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "This Python cannot make virtual environments. On Debian and Ubuntu:" \
	       "sudo apt install python3-venv" >&2; exit 1; }
	@command -v git >/dev/null || \
	  echo "Note: git was not found. The app runs without it; updating needs it." >&2

$(STAMPS)/venv:
	@$(MAKE) --no-print-directory tools
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  echo "Making the virtual environment in $(VENV)"; \
	  $(PYTHON) -m venv --clear $(VENV); }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/run: requirements.txt $(STAMPS)/venv
	@echo "Installing the requirements (the first time this takes minutes)"
	@$(BIN)/python -m pip install -r requirements.txt
	@touch $@

$(STAMPS)/dev: requirements-dev.txt $(STAMPS)/run
	@echo "Installing the test tools"
	@$(BIN)/python -m pip install -r requirements-dev.txt
	@touch $@

# An installed browser is taken as it is; otherwise Playwright fetches its own.
$(STAMPS)/browser: $(STAMPS)/dev
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	  command -v google-chrome >/dev/null || { \
	    echo "Fetching a browser for the tests"; \
	    $(BIN)/python -m playwright install chromium || { \
	      echo "No browser could be had. Install Chromium (Debian: sudo apt install chromium)" \
	           "and run make test again." >&2; exit 1; }; }
	@touch $@
