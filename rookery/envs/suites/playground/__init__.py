"""MuJoCo Playground: its tasks, and user-defined environments on MJX."""
