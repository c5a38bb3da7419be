"""Brax: the adapter, and the tasks over its robots that measure feet, directions and walls."""
