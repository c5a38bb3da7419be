"""Brax: the adapter, and the tasks that add foot contacts, undirected locomotion or walls to its robots."""
