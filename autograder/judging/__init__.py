"""What an exercise is, and how an answer is compared with the oracle. Knows no lesson and no kernel."""
