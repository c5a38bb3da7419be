"""The environments of EnvPool, which are compiled and have threads of their own."""
