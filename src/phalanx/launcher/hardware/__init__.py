"""What this machine has, and what of it each worker gets: CPUs, devices, places."""
