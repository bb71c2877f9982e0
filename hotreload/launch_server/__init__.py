"""`python -m hotreload.launch_server`: `hotreload launch`, in the place of sglang-jax's server."""
