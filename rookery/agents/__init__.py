"""Agents. An agent depends on an `EnvSpec`, never on an environment."""
