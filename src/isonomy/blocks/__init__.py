"""Mathematics shared by two or more algorithms; each equation has its one home here."""
