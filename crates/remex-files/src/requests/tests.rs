//! Tests of requests as a whole.

mod race;
