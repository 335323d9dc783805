"""torch's own names for programs that import them: ``torch.distributed.elastic`` and its kin resolve to Phalanx."""
