"""Rendering of environments: descriptions of pictures, and helpers that write films."""
