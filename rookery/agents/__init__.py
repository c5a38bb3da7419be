"""Learning algorithms. An agent is built from an `EnvSpec` and never calls an environment."""
