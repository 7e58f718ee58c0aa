"""Attention as a module, and the cache of keys and values that generation needs."""

from heedful.nn.attention import MultiHeadAttention
from heedful.nn.cache import KVCache

__all__ = ["KVCache", "MultiHeadAttention"]
