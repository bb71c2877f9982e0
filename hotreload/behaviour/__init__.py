"""Pure rules that judge what weights answer: they know no engine, no request and no clock."""
