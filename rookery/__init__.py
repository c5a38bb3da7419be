"""Rookery trains populations of reinforcement-learning agents in JAX."""
