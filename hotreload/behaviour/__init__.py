"""Questions to weights, and their answers: pure, with no engine, request or clock."""
