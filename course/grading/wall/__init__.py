"""What stands on both sides of the wall, and what stands on the far side of it.

This folder is copied into the room that a worker sees (``grading/room.py``). So it imports the
standard library and its own files only, and knows nothing of exercises, probes or marks.
"""
