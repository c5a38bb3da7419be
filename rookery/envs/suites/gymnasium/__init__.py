"""Environments of Gymnasium, by id and as user-defined objects."""
