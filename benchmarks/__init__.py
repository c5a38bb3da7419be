"""Benchmarks of speed and memory, one command each; `harness.py` documents the measurement method."""
