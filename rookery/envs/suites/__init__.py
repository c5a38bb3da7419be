"""Adapters that give the environments of other packages (Brax, MuJoCo Playground, gymnax, JaxMARL) the interface of `envs/base.py`."""
