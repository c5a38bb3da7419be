"""The documented class APIs of QDax and jaxagents, over this library's agents, learners and populations."""
