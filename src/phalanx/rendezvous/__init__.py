"""How agents agree on a round. On one machine the agreement is with oneself, along the same path."""
