"""The verbs that send requests and orders to a daemon."""
