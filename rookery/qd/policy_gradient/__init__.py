"""Emitters that vary policies by the gradient of a critic: PGA-ME and DCRL-ME."""
