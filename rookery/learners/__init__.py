"""Lives: where agent, environment and buffer first meet."""
