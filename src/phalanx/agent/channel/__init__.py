"""The agent's socket for its workers: the server, and what its lines may say."""
