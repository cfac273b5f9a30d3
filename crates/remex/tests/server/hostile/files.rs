//! File requests and watches under attack.
