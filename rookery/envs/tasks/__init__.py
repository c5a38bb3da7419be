"""Tasks without optional dependencies: point environments, pursuit, probes, and scoring functions for MAP-Elites."""
