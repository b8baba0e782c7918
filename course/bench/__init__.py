"""Measuring this engine beside others: the same prompts, threads and dtype, in turns."""
