"""What is made from results.json: tables, files that hand-in systems import, pages to read.

Everything here takes a ``ClassResult`` and gives text; course/grading/reports.py writes it.
"""
