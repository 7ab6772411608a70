"""Data files row by row, and tables that the processes of a machine share."""
