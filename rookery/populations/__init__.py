"""Population methods: what happens between the members of a population."""
