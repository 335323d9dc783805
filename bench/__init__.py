"""Benchmarks: the speed budgets of one machine, measured beside torchrun in the same run. See README.md."""
