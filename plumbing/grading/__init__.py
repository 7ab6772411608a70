"""How verify.py reads and compares answers."""
