"""Studies of the method."""
