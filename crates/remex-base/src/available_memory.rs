//! How much memory the host allows the server, and limits that fit into it.
//!
//! Start at [`fit`].

use std::{fs, path::Path};

use rustix::process::{Resource, getrlimit};

use crate::{limits::Limits, trace::LOG_TARGET};

/// Where the kernel shows cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Something that limits the memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    what: &'static str,
    bytes: u64,
    /// The part of it that clients may use, as a divisor.
    divisor: u64,
}

/// Lowers the limits on memory to what the host allows, read once when a server is created.
///
/// Without that, an allocation would fail before a limit is reached, which ends the program.
pub fn fit(limits: &mut Limits) {
    let Some(bound) = bounds().into_iter().min_by_key(|bound| bound.bytes / bound.divisor) else { return };
    if fit_into(limits, bound) {
        tracing::info!(
            target: LOG_TARGET,
            limit = bound.what,
            available = bound.bytes,
            bytes = limits.server_memory_bytes,
            bytes_per_identity = limits.identity_memory_bytes,
            "memory for clients is limited to what the host allows"
        );
    }
}

/// The address space that a thread takes for its stack.
const STACK_BYTES: u64 = 2 << 20;

/// Returns how many threads may hang at once: their stacks take a quarter of the address space.
pub fn fit_threads() -> usize {
    getrlimit(Resource::As).current.map_or(usize::MAX, threads_within)
}

fn threads_within(address_space: u64) -> usize {
    usize::try_from(address_space / 4 / STACK_BYTES).unwrap_or(usize::MAX).max(8)
}

/// Lowers the limits on memory to a part of `bound`; returns whether that was necessary.
fn fit_into(limits: &mut Limits, bound: Bound) -> bool {
    let most = usize::try_from(bound.bytes / bound.divisor).unwrap_or(usize::MAX).max(1);
    let server = limits.server_memory_bytes;
    let is_lowered = server > most;
    if is_lowered {
        let part = limits.identity_memory_bytes as u128 * most as u128 / server as u128;
        limits.identity_memory_bytes = usize::try_from(part).unwrap_or(most).max(1);
        limits.server_memory_bytes = most;
        let third = (most / 3).max(1);
        for budget in [
            &mut limits.server_retain_bytes,
            &mut limits.answer_bytes,
            &mut limits.incoming_bytes,
            &mut limits.server_request_bytes,
        ] {
            *budget = third.min(*budget);
        }
    }
    is_lowered
}

fn bounds() -> Vec<Bound> {
    // The allocator reserves address space for each thread, and threads need some for their stacks.
    let rlimit = |what, resource| getrlimit(resource).current.map(|bytes| Bound { what, bytes, divisor: 4 });
    let host = fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_total(&text));
    let cgroup =
        fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| cgroup_limit(&text, Path::new(CGROUPS)));
    [
        rlimit("RLIMIT_AS", Resource::As),
        rlimit("RLIMIT_DATA", Resource::Data),
        cgroup.map(|bytes| Bound { what: "cgroup", bytes, divisor: 2 }),
        host.map(|bytes| Bound { what: "host", bytes, divisor: 2 }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the memory of the host from `/proc/meminfo`.
fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the least memory limit of the cgroups that `/proc/self/cgroup` names, and of those above them.
fn cgroup_limit(own: &str, root: &Path) -> Option<u64> {
    let limits = own.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        let (mount, file) = if controllers.is_empty() {
            (root.to_owned(), "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            return None;
        };
        // In a container, the path may be that of the host, and the limit is at the root.
        let directory = mount.join(path);
        let above = directory.ancestors().take_while(|directory| directory.starts_with(&mount));
        above.filter_map(|directory| fs::read_to_string(directory.join(file)).ok()?.trim().parse().ok()).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: usize = 1 << 30;

    #[test]
    fn limits_are_lowered_to_a_part_of_the_memory_in_proportion() {
        let mut limits = Limits::default();
        let bound = |bytes: usize, divisor| Bound { what: "host", bytes: bytes as u64, divisor };
        assert!(!fit_into(&mut limits, bound(8 * GIB, 2)));
        assert_eq!(limits, Limits::default());
        assert!(fit_into(&mut limits, bound(3 * GIB, 2)));
        assert_eq!(limits.server_memory_bytes, 3 * GIB / 2);
        assert_eq!(limits.identity_memory_bytes, 9 * GIB / 8);
        let budgets = [
            limits.server_retain_bytes,
            limits.answer_bytes,
            limits.incoming_bytes,
            limits.server_request_bytes,
        ];
        assert_eq!(budgets, [GIB / 2; 4]);
    }

    #[test]
    fn the_stacks_of_threads_leave_address_space_for_everything_else() {
        assert_eq!(threads_within(1 << 30), 128);
        assert_eq!(threads_within(1 << 20), 8);
    }

    #[test]
    fn the_memory_of_the_host_is_read() {
        assert_eq!(mem_total("MemTotal:        2048 kB\nMemFree: 1 kB\n"), Some(2 << 20));
        assert_eq!(mem_total("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn the_lowest_limit_of_a_cgroup_and_its_ancestors_counts() {
        let root = tempfile::tempdir().unwrap();
        let service = root.path().join("system.slice/remex.service");
        fs::create_dir_all(&service).unwrap();
        fs::write(service.join("memory.max"), "max\n").unwrap();
        assert_eq!(cgroup_limit("0::/system.slice/remex.service\n", root.path()), None);
        fs::write(root.path().join("system.slice/memory.max"), "1000\n").unwrap();
        assert_eq!(cgroup_limit("0::/system.slice/remex.service\n", root.path()), Some(1000));
        fs::write(service.join("memory.max"), "500\n").unwrap();
        assert_eq!(cgroup_limit("0::/system.slice/remex.service\n", root.path()), Some(500));
        // Version 1, beside version 2.
        let memory = root.path().join("memory/docker/1");
        fs::create_dir_all(&memory).unwrap();
        fs::write(memory.join("memory.limit_in_bytes"), "400\n").unwrap();
        let own = "4:cpu,cpuacct:/\n3:memory:/docker/1\n0::/system.slice/remex.service\n";
        assert_eq!(cgroup_limit(own, root.path()), Some(400));
    }
}
