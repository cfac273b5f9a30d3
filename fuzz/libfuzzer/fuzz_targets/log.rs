//! See `remex_fuzz::log`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::log(data));
