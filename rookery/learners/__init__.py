"""Training loops of one member: an agent, its environments, and its replay buffer."""
