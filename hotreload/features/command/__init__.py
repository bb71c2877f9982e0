"""Has an operator's command decide about new weights, before they answer any request."""
