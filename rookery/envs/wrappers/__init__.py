"""Wrappers: an environment in, an environment out."""
