"""Environments: the interface, the registry of tasks, wrappers, and the suites whose environments are adapted."""
