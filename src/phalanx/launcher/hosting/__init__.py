"""An agent that a program hosts in a child process: both sides, and what they hand each other."""
