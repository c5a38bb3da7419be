"""The documented class APIs of the systems that this library continues, over its own agents, learners, populations."""
