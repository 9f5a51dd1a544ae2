"""Plain functions that methods are made of."""
