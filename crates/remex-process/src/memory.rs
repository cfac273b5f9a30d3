//! Memory that was freed and that the allocator keeps.
#![allow(unsafe_code)]

/// Returns freed memory to the host where the allocator of this build would keep it.
///
/// Takes about a tenth of a second for each gigabyte that goes back, during which other threads may wait for memory.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer, and any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Sees to it that large blocks go back to the host as soon as they are freed, also where [`trim_heap`] cannot.
///
/// By default the allocator learns from every large block to keep the next ones, up to 64 MiB for each thread that had
/// one. For programs that are a server; call it before there are threads.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        /// Above the buffers that come and go all the time, below a large file.
        const LARGE: libc::c_int = 4 << 20;
        // SAFETY: both set a number of the allocator, and a refusal changes nothing.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
            libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE);
        }
    }
}
