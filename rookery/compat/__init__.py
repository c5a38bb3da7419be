"""The documented class APIs of QDax and jaxagents, implemented with Rookery's agents, learners and populations."""
