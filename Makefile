# Everything goes through course/bootstrap.py, which also works where there is no make:
#   python3 -m course.bootstrap lab

PYTHON ?= $(shell command -v python3 || command -v python || echo python3)
RUN = $(PYTHON) -m course.bootstrap

.PHONY: help setup lab test check notebooks site bench gpu-check lock clean
.DEFAULT_GOAL := help

help:
	@echo "make lab        set everything up and open the course in JupyterLab"
	@echo "make test       set everything up and run every check"
	@echo "make setup      only set up: an environment in .venv, the packages, the model (93 MB)"
	@echo "make check      the quick checks: style, types, the shape of the project"
	@echo "make notebooks  build the notebooks from course/lessons and course/labs"
	@echo "make site       build pages to read, without a kernel, in build/site/"
	@echo "make gpu-check  test and measure the kernels on an NVIDIA GPU, in under four minutes"
	@echo "make lock       renew constraints.txt from the ranges in pyproject.toml"
	@echo "make bench      measure the engine beside others (an hour; makes environments in .bench/)"
	@echo "make clean      remove what these made; your work in exercises/ and my_engine/ stays"
	@echo "Words for the program behind a target: make lab ARGS='--port 9999'"

setup lab test check notebooks site bench gpu-check lock:
	@$(RUN) $@ $(ARGS)

clean:
	rm -rf .venv .bench .cache .artifacts .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find course tests -name __pycache__ -type d -prune -exec rm -rf {} +
