"""The key-value store that the agents of a job share: one port, modelled on etcd v3, and four implementations."""
