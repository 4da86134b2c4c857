# A newcomer needs `make demo` and `make test`; `make check` is what CI runs besides.
.DEFAULT_GOAL := help
SHELL := /bin/sh

PYTHON ?= python3
BIN := .venv/bin
SAM := .venv-sam/bin/sam
# The template's Python, which LocalStack needs, too: on the PATH, or one that pyenv has. It is run to be sure:
# pyenv's own python3.13 on the PATH does nothing where another version is chosen.
PYTHON313 ?= $(shell for python in python3.13 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.13*/bin/python3.13; do \
	"$$python" -c 'import sys; print(sys.executable)' 2>/dev/null && break; done)
PIP := -m pip --disable-pip-version-check --no-input install --quiet

LAYER := .aws-sam/build/CoreLayer/python
VALKEY_LAYER := .aws-sam/build/ValkeyLayer/python
# Our own keys, those of webhooks, and vendors'.
KEYS := swk_[A-Za-z0-9_-]{43}|whsec_[A-Za-z0-9+/]{32}|sk-(ant|proj|svcacct)-[A-Za-z0-9_-]{20}
SERVICES := appconfigdata dynamodb events lambda s3 scheduler secretsmanager signin sqs sso sso-oidc sts

export SAM_CLI_TELEMETRY := 0
export PYTHONDONTWRITEBYTECODE := 1

.PHONY: help demo test test-fast test-localstack test-live check lint types imports template build trim audit scan openapi release-openapi release-rows dashboard guarantees bench bench-report lock clean

help: ## This list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/local ## Set up, and run the main job on a local stack
	@$(BIN)/sluiceway demo

test: .venv/dev build .venv-localstack/installed .venv-rie/installed ## Set up, and run all tests
	@$(BIN)/python -m pytest

test-fast: .venv/dev ## The tests that need no whole stack and no build
	@$(BIN)/python -m pytest -m "not slow"

# With DynamoDB Local, which has the tables: so it needs Java and npm, too.
test-localstack: .venv/dev .venv-localstack/installed ## The tests on LocalStack (needs a Python 3.13)
	@$(BIN)/python -m pytest tests/localstack tests/contract -k localstack

# Nobody's CI runs it: it says what it makes and costs, and wants SLUICEWAY_LIVE_ACCOUNT.
test-live: .venv/dev build ## Test a stack of its own in your AWS account, and delete it: about 0.10 USD
	@$(BIN)/python -m pytest tests/live --live

check: lint types imports template build audit scan ## Lint, types, import rules, template, build, known holes, scans

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy layers/core/sluiceway cli/sluiceway_cli local/sluiceway_local client/sluiceway_client functions/*/app.py bench/*.py

imports: .venv/dev
	@$(BIN)/lint-imports --no-logo

template: .venv-sam/installed
	$(SAM) validate --lint --region us-east-1

# What runs on AWS, what an operator's command line and a deploy run with credentials, and the rest.
audit: .venv/dev
	$(BIN)/pip-audit --progress-spinner off --disable-pip --require-hashes \
		-r layers/core/requirements.txt -r layers/valkey/requirements.txt \
		-r requirements/dev.txt
	$(BIN)/pip-audit --progress-spinner off --disable-pip --require-hashes -r requirements/sam.txt

# Needs no network. In this repository ids, digests and fake keys are many, so secrets are looked
# for by the forms that vendors give them, not by how random or how well named a text is.
scan: .venv/dev .venv-scan/installed ## Look for what is unsafe in the template, and for secrets in the repository
	@mkdir -p .aws-sam # checkov takes what a merge key overrides for written twice, so it gets JSON
	@$(BIN)/python -c 'import json, sys; from samtranslator.yaml_helper import yaml_parse; \
		json.dump(yaml_parse(sys.stdin.read()), sys.stdout, indent=1)' \
		< template.yaml > .aws-sam/template.json
	@echo "checkov --file template.yaml"; \
		told="$$(.venv-scan/bin/checkov --config-file requirements/checkov.yaml \
			--file .aws-sam/template.json 2>&1)"; \
		status=$$?; echo "$$told"; test $$status -eq 0 || exit $$status; \
		case "$$told" in *"Parsing errors"*) exit 1 ;; esac # it passes over what it can't read
	git ls-files -z | xargs -0 .venv-scan/bin/detect-secrets-hook --no-verify \
		--disable-plugin KeywordDetector \
		--disable-plugin Base64HighEntropyString --disable-plugin HexHighEntropyString
	@! git grep -nIE '$(KEYS)' | grep -v swk_BwcHBwcH # of our samples of events

build: .venv-sam/installed ## Package the functions and the layers as AWS gets them (needs a Python 3.13)
	@python="$(PYTHON313)"; if test -z "$$python"; then \
		echo "no Python 3.13 found: skipping sam build, and the tests of what it makes skip too"; \
	else \
		PATH="$$(dirname "$$python"):$$PATH" $(SAM) build --cached || exit 1; \
		$(MAKE) --no-print-directory trim PYTHON313="$$python"; \
	fi

# /opt is read-only, so Lambda would compile every module at every start.
trim:
	@"$(PYTHON313)" layers/trim.py $(LAYER)/botocore/data $(SERVICES)
	@"$(PYTHON313)" -m compileall -q --invalidation-mode unchecked-hash $(LAYER) $(VALKEY_LAYER)

openapi: .venv/dev ## Make docs/openapi.json anew, and the copy that is served
	@$(BIN)/python -m sluiceway_local.openapi

dashboard: .venv/dev ## Make the dashboard in template.yaml anew
	@$(BIN)/python -m sluiceway_local.dashboard

guarantees: .venv/dev ## Make the table of what tests prove in docs/local.md anew
	@$(BIN)/python -m tests.guarantees

release-openapi: openapi ## With a release: later documents have to agree with today's
	@$(BIN)/python -m sluiceway_local.openapi release

release-rows: .venv/dev ## With a release: later code has to get on with what today's stores and sends
	@$(BIN)/python -m tests.contract.release

# Cheapest first, so that a fault shows early. Of the programs in bench/ only burst.py is left out:
# it takes half an hour.
BENCHES := aws_calls cold_start warm_path cache_cost growth early_refresh added_latency peers simulate

bench: .venv/dev .venv-bench/installed build ## Measure all, and write docs/benchmarks.md
	@for name in $(BENCHES); do \
		echo "bench/$$name.py"; $(BIN)/python bench/$$name.py --save || exit 1; \
	done
	@$(MAKE) --no-print-directory bench-report

bench-report: .venv-bench/installed ## Make docs/benchmarks.md and its plots anew of bench/results
	@$(BIN)/python bench/report.py
	@.venv-bench/bin/python bench/plots.py

lock: .venv/dev ## Make the locks in requirements/ anew
	$(BIN)/python $(PIP) uv
	cd requirements && for name in dev local core valkey; do \
		test $$name = dev && with= || with="-c dev.txt"; \
		../$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
			--no-emit-index-url --no-header --no-annotate $$with $$name.in -o $$name.txt || exit 1; \
	done
	mv requirements/core.txt layers/core/requirements.txt
	mv requirements/valkey.txt layers/valkey/requirements.txt
	cd requirements && ../$(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-header --no-annotate sam.in -o sam.txt
	cd requirements && ../$(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-header --no-annotate scan.in -o scan.txt
	cd requirements && ../$(BIN)/uv pip compile --quiet --universal --python-version 3.13 \
		--generate-hashes --no-emit-index-url --no-header --no-annotate rie.in -o rie.txt
	cd requirements && ../$(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-header --no-annotate bench.in -o bench.txt
	cd requirements && ../$(BIN)/uv pip compile --quiet --python-version 3.13 \
		--generate-hashes --no-emit-index-url --no-header --no-annotate localstack.in -o localstack.txt

clean: ## Remove what was made here
	-@test ! -x $(BIN)/sluiceway || $(BIN)/sluiceway local down
	rm -rf .venv .venv-bench .venv-localstack .venv-rie .venv-sam .venv-scan .aws-sam .sluiceway .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/python: Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Sluiceway needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@touch $@

.venv/local: .venv/python requirements/local.txt pyproject.toml
	@echo "installing what the local stack needs"
	@$(BIN)/python $(PIP) --no-deps --require-hashes -r requirements/local.txt
	@$(BIN)/python $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

.venv/dev: .venv/local requirements/dev.txt
	@echo "installing what the tests and checks need"
	@$(BIN)/python $(PIP) --no-deps --require-hashes -r requirements/dev.txt
	@touch $@

.venv-sam/installed .venv-scan/installed .venv-bench/installed: .venv-%/installed: requirements/%.txt
	@echo "installing what requirements/$*.in names"
	@test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	@.venv-$*/bin/python $(PIP) --no-deps --require-hashes -r $<
	@touch $@

# Without a Python 3.13 nothing is made, and the next run tries again.
.venv-localstack/installed .venv-rie/installed: .venv-%/installed: requirements/%.txt
	@python="$(PYTHON313)"; if test -z "$$python"; then \
		echo "no Python 3.13 found: the tests in tests/$* skip"; \
	else \
		echo "installing what requirements/$*.in names"; \
		test -x .venv-$*/bin/python || "$$python" -m venv .venv-$* || exit 1; \
		.venv-$*/bin/python $(PIP) --no-deps --require-hashes -r $< && touch $@; \
	fi
