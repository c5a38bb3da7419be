"""JaxMARL: the adapter, the list of its environments, and their visualisers."""
