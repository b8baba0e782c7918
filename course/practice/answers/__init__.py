"""What gives exercises away, one file a lab: wrong answers, alternatives, reasons.

Kept apart from ``bank`` so that a process that runs somebody's submission need not have it.
"""
