//! See `remex_fuzz::server_config`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::server_config(data));
