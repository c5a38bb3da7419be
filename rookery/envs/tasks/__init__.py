"""Tasks that need no other package: point environments, pursuit, probes, and functions to search."""
