//! See `remex_fuzz::environments`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::environments(data));
