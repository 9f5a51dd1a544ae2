"""What models score on the clients' test data. It is measured, not exchanged: nothing is metered, nothing kept."""
