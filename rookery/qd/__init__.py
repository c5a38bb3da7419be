"""Quality diversity: repertoires, emitters, and MAP-Elites."""
