"""The supervising agent of one node: machines that decide, and the driver that performs."""
