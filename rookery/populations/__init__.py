"""Population methods: selection and inheritance between the members of a population."""
