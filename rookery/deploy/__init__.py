"""Use of trained runs: policies, evaluation, recorded episodes, rendering, export."""
