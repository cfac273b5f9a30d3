//! Memory is bounded over the whole server, and given back.
