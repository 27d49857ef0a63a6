"""Privacy: differential privacy with its ledger, and secure aggregation (`secure`)."""
