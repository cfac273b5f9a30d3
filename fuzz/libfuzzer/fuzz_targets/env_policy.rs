//! See `remex_fuzz::env_policy`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::env_policy(data));
