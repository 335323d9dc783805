"""Where and how the nodes of a job meet, from what the user asked for."""
