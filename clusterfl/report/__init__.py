"""Pictures of populations, models and runs; matplotlib (extra ``report``) is imported when one is drawn."""
