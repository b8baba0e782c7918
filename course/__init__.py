"""A course on paged attention: lessons, labs and the engine that they build.

Importing ``course`` is quick and brings in neither torch nor triton.
"""

__version__ = "0.1.0"
