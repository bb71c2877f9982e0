"""The api_schema API: the fields that requests may have, and GET /openapi.json."""
