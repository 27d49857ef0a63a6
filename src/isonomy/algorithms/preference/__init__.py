"""Methods that learn a model for every preference between performance and fairness."""
