"""Wrappers: functions from an environment to an environment with an added property."""
