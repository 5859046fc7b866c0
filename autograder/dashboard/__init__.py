"""What a class's records say to its instructor: figures, what to look at, and the dashboard. Writes no grade."""
