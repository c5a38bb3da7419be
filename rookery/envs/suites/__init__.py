"""Environments of other packages (Brax, gymnax, JaxMARL) behind this library's interface."""
