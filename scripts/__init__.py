"""Commands for data and runs."""
