"""What is asked of environments, and what happens when one fails."""
