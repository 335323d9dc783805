"""What ended workers left behind, read once, and why a signal killed them."""
