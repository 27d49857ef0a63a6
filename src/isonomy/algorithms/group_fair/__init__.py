"""Methods that are fair to groups of people, wherever their examples lie."""
