"""Comparisons of learning results over seeds, one command each."""
