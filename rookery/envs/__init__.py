"""Worlds: environments, their tasks, and how an episode is described."""
