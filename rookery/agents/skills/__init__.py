"""Agents that discover skills, wrapped around another agent: DIAYN, METRA and LSD, and their SMERL condition."""
