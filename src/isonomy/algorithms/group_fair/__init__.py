"""Methods that are fair to protected groups, whichever clients hold the groups' examples."""
