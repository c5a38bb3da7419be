"""What is done with a trained run: policies, evaluation, episodes, rendering, export."""
