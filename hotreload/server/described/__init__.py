"""The described API: the fields that requests may have, and GET /openapi.json."""
