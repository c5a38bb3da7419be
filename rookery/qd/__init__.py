"""Places: repertoires of behaviours, where new genotypes come from, and the loop between them (quality diversity)."""
