"""The state of the daemon, built from the events once, and put into words for every reader."""
