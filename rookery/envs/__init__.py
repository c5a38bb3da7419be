"""Environments: the interface, the task registry, the wrappers, and the adapters of other suites."""
