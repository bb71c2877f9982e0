"""The token everybody else's tools would use."""


def usual_token() -> str | None:
    """HF_TOKEN, or what `hf auth login` left; None when there is neither."""
    from huggingface_hub import get_token

    token: str | None = get_token()
    return token
