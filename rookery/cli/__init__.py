"""The command line `rookery`."""
