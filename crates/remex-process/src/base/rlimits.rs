//! Resource limits of a child that the kernel applies to each process by itself, and that descendants inherit.
//!
//! Start at [`Rlimits`].

use crate::base::sys;

/// What a limit bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rlimit {
    /// CPU time in seconds: SIGXCPU at the limit, and SIGKILL after one more second of CPU time, or at once at the hard
    /// limit of this program.
    CpuTime,
    /// Bytes of address space: further mappings fail.
    AddressSpace,
    /// Open descriptors: one more than the highest number that a descriptor may have.
    OpenFiles,
    /// Processes and threads of the user, wherever they were started: further forks fail.
    Processes,
    /// The size of a file in bytes: writes beyond it raise SIGXFSZ.
    FileSize,
}

/// The resource limits of one child. Those that are not set are inherited from this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rlimits([Option<u64>; Rlimit::ALL.len()]);

/// The time between SIGXCPU and SIGKILL, in seconds of CPU time.
const CPU_GRACE: u64 = 1;

/// The kernel counts CPU time in nanoseconds, and a larger number of seconds would overflow. No process runs this long.
const MAX_CPU_SECONDS: u64 = 1_000_000_000;

/// The capabilities that exempt from [`Rlimit::Processes`]: `CAP_SYS_ADMIN` and `CAP_SYS_RESOURCE`.
const EXEMPTING_CAPABILITIES: u64 = 1 << 21 | 1 << 24;

impl Rlimit {
    const ALL: [Self; 5] =
        [Self::CpuTime, Self::AddressSpace, Self::OpenFiles, Self::Processes, Self::FileSize];

    /// Returns the highest value that a child may get: the hard limit of this program.
    #[must_use]
    pub fn most(self) -> u64 {
        sys::limit(0, self.resource()).map_or(libc::RLIM_INFINITY, |limit| limit.rlim_max)
    }

    /// Returns whether children of this program are bound by the limit.
    ///
    /// The kernel exempts root, and holders of two capabilities, from the limit on processes.
    #[must_use]
    pub fn binds_children(self) -> bool {
        self != Self::Processes
            || !std::fs::read_to_string("/proc/self/status").is_ok_and(|status| is_exempt(&status))
    }

    fn resource(self) -> sys::Resource {
        match self {
            Self::CpuTime => libc::RLIMIT_CPU,
            Self::AddressSpace => libc::RLIMIT_AS,
            Self::OpenFiles => libc::RLIMIT_NOFILE,
            Self::Processes => libc::RLIMIT_NPROC,
            Self::FileSize => libc::RLIMIT_FSIZE,
        }
    }

    /// Returns the limit in the kernel's format, given the hard limit of this program.
    fn raw(self, value: u64, most: u64) -> libc::rlimit {
        match self {
            Self::CpuTime => {
                let soft = value.min(MAX_CPU_SECONDS);
                libc::rlimit { rlim_cur: soft, rlim_max: (soft + CPU_GRACE).min(most) }
            }
            _ => libc::rlimit { rlim_cur: value, rlim_max: value },
        }
    }
}

impl Rlimits {
    /// Sets one limit, soft and hard, so that a child without `CAP_SYS_RESOURCE` cannot raise it; for CPU time, the
    /// hard one is a second higher.
    #[must_use]
    pub fn with(mut self, limit: Rlimit, value: u64) -> Self {
        self.0[limit as usize] = Some(value);
        self
    }

    /// Returns a limit, if it is set.
    #[must_use]
    pub fn get(&self, limit: Rlimit) -> Option<u64> {
        self.0[limit as usize]
    }

    /// Returns whether a limit is set.
    pub(crate) fn has(&self, limit: Rlimit) -> bool {
        self.get(limit).is_some()
    }

    /// Returns the limits in the kernel's format.
    pub(crate) fn raw(&self) -> [Option<(sys::Resource, libc::rlimit)>; Rlimit::ALL.len()] {
        Rlimit::ALL.map(|limit| {
            let value = self.0[limit as usize]?;
            Some((limit.resource(), limit.raw(value, limit.most())))
        })
    }
}

/// Returns whether the process of this `/proc/PID/status` is root or has an exempting capability.
fn is_exempt(status: &str) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_root = field("Uid:").and_then(|ids| ids.split_whitespace().next()) == Some("0");
    let capabilities = field("CapEff:").and_then(|set| u64::from_str_radix(set, 16).ok()).unwrap_or(0);
    is_root || capabilities & EXEMPTING_CAPABILITIES != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_has_a_grace_period_and_never_overflows_in_the_kernel() {
        let raw = |value, most| {
            let limit = Rlimit::CpuTime.raw(value, most);
            (limit.rlim_cur, limit.rlim_max)
        };
        assert_eq!(raw(10, libc::RLIM_INFINITY), (10, 11));
        assert_eq!(raw(10, 10), (10, 10));
        assert_eq!(raw(u64::MAX, libc::RLIM_INFINITY), (MAX_CPU_SECONDS, MAX_CPU_SECONDS + 1));
        assert!(u128::from(MAX_CPU_SECONDS + CPU_GRACE) * 1_000_000_000 < u128::from(u64::MAX));
    }

    #[test]
    fn only_limits_that_are_set_are_applied() {
        assert!(Rlimits::default().raw().iter().all(Option::is_none));
        let limits = Rlimits::default().with(Rlimit::FileSize, 7);
        let set: Vec<_> = limits.raw().into_iter().flatten().collect();
        let [(resource, limit)] = set[..] else { panic!("one limit is set") };
        assert_eq!((resource, limit.rlim_cur, limit.rlim_max), (libc::RLIMIT_FSIZE, 7, 7));
    }

    #[test]
    fn root_and_two_capabilities_are_exempt_from_the_limit_on_processes() {
        let status = |uid: u32, caps: u64| format!("Name:\tx\nUid:\t{uid}\t0\t0\t0\nCapEff:\t{caps:016x}\n");
        assert!(is_exempt(&status(0, 0)));
        assert!(!is_exempt(&status(1000, 0)));
        assert!(is_exempt(&status(1000, 1 << 21)));
        assert!(is_exempt(&status(1000, 1 << 24)));
        assert!(!is_exempt(&status(1000, 1 << 10)));
    }
}
