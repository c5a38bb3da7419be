"""Configurations of all kinds of run, and the functions that build a program from a configuration."""
