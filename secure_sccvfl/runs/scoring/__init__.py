"""Sessions on a trained model: test figures and decisions about new records, and what each opens."""
