"""The commands of `python -m course`, one a file: course/cli.py says how to add one."""
