"""The API schema: the fields that requests may have, and GET /openapi.json."""
