"""A real sglang-jax behind `core.ports.Engine`: the only place that imports jax and sgl_jax."""
