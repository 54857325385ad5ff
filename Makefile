# Every target needs no more than make and a Python of 3.11 or later with its venv module.

PYTHON ?= python3
UV := .venv/bin/uv
# the version that wrote uv.lock
UV_VERSION := 0.13.9

.PHONY: example demo test lint format wheel picture clean

example: .venv/run.stamp
	.venv/bin/runwatch replay example/run --recording example/recording.jsonl --timezone UTC

demo: .venv/run.stamp
	.venv/bin/runwatch demo

test: .venv/dev.stamp
	.venv/bin/python -m pytest

lint: .venv/dev.stamp
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

format: .venv/dev.stamp
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

wheel: $(UV)
	sh .ci/wheel $(UV)

picture: .venv/run.stamp
	PATH="$$PWD/.venv/bin:$$PATH" .venv/bin/python docs/picture.py docs/replay.svg \
	    replay example/run --recording example/recording.jsonl --timezone UTC
	PATH="$$PWD/.venv/bin:$$PATH" .venv/bin/python docs/picture.py \
	    --when "what a person is told, " docs/demo.svg demo

clean:
	rm -rf .venv dist

$(UV): Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo '$(PYTHON) is older than Python 3.11: name another one with PYTHON=…' >&2; exit 2; }
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check 'uv==$(UV_VERSION)'
	touch $@

# --inexact: uv itself lives in the environment that it fills
.venv/run.stamp: $(UV) pyproject.toml uv.lock
	$(UV) sync --quiet --frozen --inexact --no-dev
	touch $@

.venv/dev.stamp: $(UV) pyproject.toml uv.lock
	$(UV) sync --quiet --frozen --inexact
	touch $@ .venv/run.stamp
