"""Adapters that give the environments of other packages (Brax, gymnax, JaxMARL) the interface of `envs/base.py`."""
