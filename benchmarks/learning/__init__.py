"""Does it learn? Comparisons over seeds, each made by one command."""
