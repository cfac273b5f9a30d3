//! Returns freed memory that the allocator keeps to the host, and spares address space where that is limited.
#![allow(unsafe_code)]

/// Returns freed memory to the host if the allocator of this build would keep it.
///
/// Takes about a tenth of a second per gigabyte, during which other threads may wait for memory.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer, and any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes the allocator use few heaps if the address space of this program is limited: it reserves 64 MiB for each.
///
/// For dedicated server programs; call it before any thread is started.
pub fn spare_address_space() {
    #[cfg(target_env = "gnu")]
    {
        use rustix::process::{Resource, getrlimit};

        /// Enough that threads rarely wait for each other.
        const HEAPS: libc::c_int = 2;
        if getrlimit(Resource::As).current.is_some() {
            // SAFETY: sets a parameter of the allocator; a failure changes nothing.
            unsafe {
                libc::mallopt(libc::M_ARENA_MAX, HEAPS);
            }
        }
    }
}

/// Makes the allocator return large blocks to the host as soon as they are freed, even where [`trim_heap`] cannot.
///
/// By default, the allocator starts to keep large blocks after the first one is freed, up to 64 MiB per thread. For
/// dedicated server programs; call it before any thread is started.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        /// Larger than short-lived buffers, smaller than a large file.
        const LARGE: libc::c_int = 4 << 20;
        // SAFETY: both set a parameter of the allocator; a failure changes nothing.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
            libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE);
        }
    }
}
