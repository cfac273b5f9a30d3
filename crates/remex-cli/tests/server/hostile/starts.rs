//! Starts that hang, and servers that die.

mod dead_server;
mod hung;
