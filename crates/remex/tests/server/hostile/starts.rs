//! Starts that hang, and servers that die.

mod hung;
