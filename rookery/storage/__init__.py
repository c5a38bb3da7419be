"""The files of a run: run directory, tables, event journal and checkpoints."""
