"""Adapters that give the environments of other packages the interface of `envs/base.py`.

The packages are Brax, MuJoCo Playground, gymnax and JaxMARL.
"""
