"""Speed and memory, one command each; `harness.py` says how they are measured."""
