"""Environments that run on the host, outside of compiled programs, such as those of Gymnasium and EnvPool."""
