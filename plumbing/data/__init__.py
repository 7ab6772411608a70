"""Problem files: rows as text, checks, and tables that the processes of a machine share."""
