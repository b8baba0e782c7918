"""What a teacher hands out or sets up: a bundle for students, an nbgrader folder, an autograder.

``python -m course release`` calls these; docs/teaching.md tells when to use which.
"""
