"""What clients hold: sources, partition, shift, population."""
