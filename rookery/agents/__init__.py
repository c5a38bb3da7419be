"""Minds: agents. An agent sees an `EnvSpec`, never an environment."""
