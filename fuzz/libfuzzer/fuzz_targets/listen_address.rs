//! See `remex_fuzz::listen_address`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::listen_address(data));
