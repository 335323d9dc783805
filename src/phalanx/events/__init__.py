"""What happens to a job, and torchelastic's events of it."""
