"""The training loop of a run: generations, progress, memory, and what is written after each."""
