"""SGLang's routes, and vLLM's names of a few, for programs that were written for those servers."""
