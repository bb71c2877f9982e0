"""How things are: taken in from the events once, and said in one place for all who tell of it."""
