"""Benchmarks: `python -m benchmarks` times attention, `python benchmarks/memory.py` measures its memory."""
