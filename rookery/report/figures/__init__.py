"""Figures of runs, drawn with Matplotlib."""
