//! See `remex_fuzz::websocket`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::websocket(data));
