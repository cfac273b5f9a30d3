//! Starts that hang, and servers that die.
