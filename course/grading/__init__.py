"""Grading submissions: who handed in what, answers out of notebooks, each in a sandbox of its own.

In the order of reading: ``intake`` and ``layouts`` (whose file is this), ``notebook`` and
``answers`` (what did they write), ``room``, ``sandbox``, ``isolation`` and ``session`` (where it
runs), ``wall`` (the far side, and how the two sides talk), ``trial`` and ``exam`` (what it is
worth), ``signs`` (what deserves a look), ``results`` (what is written down), ``job`` and ``run`` (a
whole class). docs/grading.md says what it withstands.
"""
