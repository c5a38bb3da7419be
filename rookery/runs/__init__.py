"""Outside: run folders, the loop, checkpoints, logs, the terminal. Host side, impure."""
