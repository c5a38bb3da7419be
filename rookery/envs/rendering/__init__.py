"""How an environment can be drawn."""
