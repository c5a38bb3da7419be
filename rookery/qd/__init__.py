"""Quality diversity: repertoires, emitters, and the loop between them."""
