"""The training loop of a run: compilation, generations, progress display, memory plan, and the files that it writes."""
