"""Grading submissions: who handed in what, answers out of notebooks, each in a sandbox of its own.

In the order of reading: ``intake`` and ``layouts`` (whose file is this), ``notebook`` and
``answers`` (what did they write), ``room``, ``sandbox``, ``lockdown`` and ``worker`` (where it
runs), ``wire`` and ``session`` (how the two sides talk), ``exam`` (what it is worth), ``results``
(what is written down), ``job`` and ``run`` (a whole class). docs/grading.md says what it withstands.
"""
