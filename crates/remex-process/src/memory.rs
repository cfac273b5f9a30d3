//! Memory that was freed and that the allocator keeps.
#![allow(unsafe_code)]

/// Returns freed memory to the host where the allocator of this build would keep it.
///
/// Takes about a tenth of a second for each gigabyte that goes back, during which other threads may wait for memory.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer, and any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
