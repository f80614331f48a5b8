# Everything runs in .venv, whatever environment the caller is in.
PY := .venv/bin/python
ROOT_NEEDS := $(if $(filter 0,$(shell id -u)),--allow-root)
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV JUPYTER_PATH JUPYTER_PREFER_ENV_PATH

.PHONY: help setup lab test outputs student bench clean
.NOTPARALLEL:

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' Makefile

setup: ## Build the environment in .venv, or find it up to date
	@sh .ci/setup.sh

lab: setup ## Open the notebooks in JupyterLab (LAB="--no-browser --port 9000" passes options on)
	cd notebooks && ../$(PY) -m jupyterlab $(ROOT_NEEDS) $(LAB)

test: setup ## Lint, run all tests, and run every notebook against its stored outputs
	$(PY) -m ruff check .
	$(PY) -m pytest -n 2 --dist loadfile --nbval tests notebooks

outputs: setup ## Run notebooks in a clean kernel and store what they show (NAMES="03 07": only these)
	$(PY) -m labkit outputs $(NAMES)

student: setup ## Copy what students get, without outputs and solutions, to a new folder (TO="course": its name)
	$(PY) -m labkit student $(TO)

bench: setup ## Measure what is shown but never asserted
	$(PY) tests/benchmarks

clean: ## Remove .venv and everything else that was generated
	rm -rf .venv *.egg-info .pytest_cache .ruff_cache
	find . -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
