"""The settings of every kind of run, and what builds a program from them."""
