"""Emitters whose proposals are samples of normal distributions: CMA-MAE and CMA-ME."""
