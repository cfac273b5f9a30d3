//! How `limits` of `process/start` are enforced: by rlimits, by a cgroup, or not at all.
//!
//! What cannot be enforced is refused. Start at [`LimitEnforcer`].

use std::{num::NonZeroU64, path::PathBuf, sync::Arc};

use remex_base::trace::LOG_TARGET;
use remex_process::{CgroupLimits, Cgroups, OwnCgroup, Rlimit, Rlimits};
use remex_proto::{
    ErrorKind, RpcError,
    environment::{LimitMethod, ProcessLimits},
    process::ResourceLimits,
};

/// The least memory that a process may be limited to. With less, programs crash before they can say why.
const LEAST_MEMORY: u64 = 4 << 20;

/// The cgroup that a server divides among processes with limits.
///
/// A server that uses the cgroup it is in moves the whole program to a leaf of it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum CgroupUse {
    /// None: limits are enforced by other means, or refused.
    #[default]
    None,
    /// The one that the server is in, if the host's manager has delegated it; else none.
    Delegated,
    /// The current form, which no other program may use.
    At(PathBuf),
}

/// Enforces the limits of children with what the host offers.
#[derive(Debug)]
pub struct LimitEnforcer {
    cgroups: Option<Arc<Cgroups>>,
    methods: ProcessLimits,
}

impl LimitEnforcer {
    /// Uses the cgroup that the configuration names. Moves this program within it, so call this before starting processes.
    ///
    /// # Errors
    ///
    /// If a cgroup that was named explicitly cannot be used; one that is only looked for is optional.
    pub fn new(wanted: &CgroupUse) -> Result<Self, remex_process::CgroupError> {
        let (cgroups, without_cgroup) = match wanted {
            CgroupUse::None => (None, Some("remex uses no cgroup here".to_owned())),
            CgroupUse::At(path) => (Some(Cgroups::at(path)?), None),
            CgroupUse::Delegated => match Cgroups::delegated() {
                Ok(cgroups) => (Some(cgroups), None),
                Err(error) => (None, Some(error.to_string())),
            },
        };
        let missing = cgroups.as_ref().and_then(|cgroups| {
            let missing = match (cgroups.limits_memory(), cgroups.limits_processes()) {
                (true, true) => return None,
                (false, _) => "memory",
                (true, false) => "pids",
            };
            Some(format!("the cgroup `{}` lacks the controller `{missing}`", cgroups.root().display()))
        });
        if let Some(cgroups) = &cgroups {
            tracing::info!(target: LOG_TARGET, cgroup = %cgroups.root().display(), "limits of processes are enforced by cgroups");
        }
        let by_cgroup = |has: fn(&Cgroups) -> bool, otherwise| match &cgroups {
            Some(cgroups) if has(cgroups) => LimitMethod::Cgroup,
            _ => otherwise,
        };
        // The kernel exempts root from the limit on processes.
        let is_bound = Rlimit::Processes.binds_children();
        let processes = if is_bound { LimitMethod::Rlimit } else { LimitMethod::Unavailable };
        let mut methods = ProcessLimits::new(LimitMethod::Rlimit);
        methods.memory_bytes = by_cgroup(Cgroups::limits_memory, LimitMethod::Rlimit);
        methods.processes = by_cgroup(Cgroups::limits_processes, processes);
        methods.without_cgroup = without_cgroup.or(missing);
        Ok(Self { cgroups: cgroups.map(Arc::new), methods })
    }

    /// Returns how each limit is enforced.
    pub fn methods(&self) -> &ProcessLimits {
        &self.methods
    }

    /// Returns what enforces these limits.
    ///
    /// # Errors
    ///
    /// If one cannot be enforced, or exceeds what the server itself may have.
    pub(crate) fn plan(&self, limits: &ResourceLimits) -> Result<(Rlimits, Option<OwnCgroup>), RpcError> {
        let mut rlimits = Rlimits::default();
        let mut in_cgroup = CgroupLimits::default();
        if limits.is_empty() {
            return Ok((rlimits, None));
        }
        if let Some(bytes) = limits.memory_bytes.filter(|bytes| bytes.get() < LEAST_MEMORY) {
            return Err(too_little_memory(bytes.get()));
        }
        let mut set = |what: &str, rlimit: Rlimit, value: Option<NonZeroU64>| -> Result<(), RpcError> {
            let Some(value) = value.map(NonZeroU64::get) else { return Ok(()) };
            if value > rlimit.most() {
                return Err(too_high(what, value, rlimit.most()));
            }
            rlimits = rlimits.with(rlimit, value);
            Ok(())
        };
        set("CPU seconds (`cpuSeconds`)", Rlimit::CpuTime, limits.cpu_seconds)?;
        set("open files (`openFiles`)", Rlimit::OpenFiles, limits.open_files)?;
        set("the size of files (`fileBytes`)", Rlimit::FileSize, limits.file_bytes)?;
        if self.methods.memory_bytes == LimitMethod::Cgroup {
            in_cgroup.memory_bytes = limits.memory_bytes.map(NonZeroU64::get);
        } else {
            set("memory (`memoryBytes`)", Rlimit::AddressSpace, limits.memory_bytes)?;
        }
        match self.methods.processes {
            LimitMethod::Cgroup => in_cgroup.processes = limits.processes.map(NonZeroU64::get),
            LimitMethod::Rlimit => set("processes (`processes`)", Rlimit::Processes, limits.processes)?,
            _ if limits.processes.is_some() => return Err(self.cannot_count()),
            _ => {}
        }
        let cgroups = self.cgroups.as_ref().filter(|_| in_cgroup != CgroupLimits::default());
        let own = cgroups.map(|cgroups| OwnCgroup { cgroups: Arc::clone(cgroups), limits: in_cgroup });
        Ok((rlimits, own))
    }

    /// Returns whether these limits need a cgroup, which belongs to the server.
    pub fn needs_cgroup(&self, limits: &ResourceLimits) -> bool {
        self.cgroups.is_some() && self.plan(limits).is_ok_and(|(_, cgroup)| cgroup.is_some())
    }

    /// Returns the cgroups of children, if the server has any.
    pub fn cgroups(&self) -> Option<&Arc<Cgroups>> {
        self.cgroups.as_ref()
    }

    fn cannot_count(&self) -> RpcError {
        let why = self.methods.without_cgroup.as_deref().unwrap_or("it has none");
        let message = format!(
            "cannot limit the number of processes: the kernel exempts root, as which remex runs here, and it has no cgroup: {why}"
        );
        RpcError::new(ErrorKind::NotSupported, message).with_hint(
            "omit the limit, run remex as another user, or use a server that has a cgroup with the controller `pids` (`Delegate=yes` \
             in its unit, or `remex serve --cgroup DIR`)",
        )
    }
}

fn too_little_memory(bytes: u64) -> RpcError {
    let message =
        format!("a memory limit of {bytes} bytes (`memoryBytes`) is too small for any program to start");
    let hint = format!("ask for at least {} MiB ({LEAST_MEMORY} bytes)", LEAST_MEMORY >> 20);
    RpcError::new(ErrorKind::InvalidParams, message).with_hint(hint)
}

fn too_high(what: &str, value: u64, most: u64) -> RpcError {
    let message = format!("the limit on {what} is {value}, but remex itself has a hard limit of {most}");
    RpcError::new(ErrorKind::LimitExceeded, message)
        .with_hint(format!("ask for at most {most}, or start remex with a higher hard limit (`ulimit -H`)"))
}
