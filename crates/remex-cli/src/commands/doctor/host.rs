//! Checks of any host: limits, memory, disk space, kernel features.
//!
//! Reads files below `/proc` and `/sys`, locally or through a server. Start at [`check`].

use std::io;

use remex_client::{Client, Command, Error, process::Sandbox};
use remex_proto::environment::{Confinement, LimitMethod, ProcessConfinement, ProcessLimits};

use crate::{
    remote::{local_server, probe::temporary},
    render::{
        finding::{Finding, Verdict},
        text::size,
    },
};

/// With fewer open files, a server with a few clients runs out of descriptors.
const MIN_FILES: u64 = 1024;

/// With fewer processes, a build fails.
const MIN_PROCESSES: u64 = 512;

/// With fewer watches, a source tree cannot be watched.
const MIN_WATCHES: u64 = 8192;

/// With fewer instances, several programs cannot watch files at the same time.
const MIN_INSTANCES: u64 = 64;

/// With less memory, the kernel is likely to kill processes.
const MIN_MEMORY: u64 = 256 << 20;

/// With less disk space, transfers and builds fail.
const MIN_SPACE: u64 = 256 << 20;

/// The oldest supported kernel.
const OLDEST_KERNEL: (u32, u32) = (5, 9);

/// The largest tag that a server gives its processes.
const MAX_TAG: u64 = i64::MAX as u64;

/// The host to check.
pub(super) enum Host<'a> {
    Here,
    There(&'a Client),
}

impl Host<'_> {
    /// Reads a file; `None` if it is missing or unreadable.
    pub(super) async fn read(&self, path: &str) -> Option<String> {
        match self {
            Self::Here => std::fs::read_to_string(path).ok(),
            Self::There(client) => {
                let content = client.fs().read(path).await.ok()?;
                String::from_utf8(content.to_vec()).ok()
            }
        }
    }

    async fn number(&self, path: &str) -> Option<u64> {
        self.read(path).await?.trim().parse().ok()
    }

    /// Returns how the server enforces limits of processes; here it is one in this process, as `remex run` uses.
    async fn process_limits(&self) -> Option<ProcessLimits> {
        let info = self.with_client(async |client| client.info().await).await;
        info.ok()?.process_limits
    }

    /// Runs a confined command, and asks what else can be enforced.
    async fn try_sandbox(&self) -> Result<Option<Confinement>, Error> {
        self.with_client(async |client| {
            let command = Command::new("true").durable(false).cwd("/").sandbox(Sandbox::read_only());
            command.output(client).await?;
            client.confinement().await
        })
        .await
    }

    /// Calls the server there, or one in this process.
    async fn with_client<T>(&self, call: impl AsyncFnOnce(&Client) -> Result<T, Error>) -> Result<T, Error> {
        match self {
            Self::Here => {
                let target = local_server::in_process().map_err(|failure| {
                    Error::local("serve in this process", io::Error::other(failure.message()))
                })?;
                let client = Client::connect(target).await?;
                let result = call(&client).await;
                let _ = client.end().await;
                result
            }
            Self::There(client) => call(client).await,
        }
    }

    /// Returns the directory for temporary files, and its free space in bytes.
    async fn temporary(&self) -> (String, Option<u64>) {
        match self {
            Self::Here => {
                let directory = std::env::temp_dir();
                let free = rustix::fs::statvfs(&directory).ok();
                let free = free.map(|space| space.f_bavail.saturating_mul(space.f_frsize));
                (directory.display().to_string(), free)
            }
            Self::There(client) => {
                let info = client.info().await;
                let directory = info.map_or_else(|_| "/tmp".to_owned(), |info| temporary(&info));
                let table = Command::new("df")
                    .durable(false)
                    .args(["-P", "-k", &directory])
                    .output(client)
                    .await
                    .ok();
                let table = table.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
                (directory, table.and_then(|table| available(&table)))
            }
        }
    }
}

/// Runs all checks.
pub(super) async fn check(host: &Host<'_>) -> Vec<Finding> {
    let limits = host.read("/proc/self/limits").await.unwrap_or_default();
    let (directory, free) = host.temporary().await;
    let mut findings = vec![
        kernel(host.read("/proc/sys/kernel/osrelease").await.as_deref()),
        enough(
            "open files",
            limit(&limits, "Max open files"),
            MIN_FILES,
            "raise it with `ulimit -n`, or `LimitNOFILE=` in the unit of the server",
        ),
        enough(
            "processes",
            limit(&limits, "Max processes"),
            MIN_PROCESSES,
            "raise it with `ulimit -u`, or `LimitNPROC=` and `TasksMax=` in the unit of the server",
        ),
        tags(&limits),
        memory(host).await,
        space(&directory, free),
        sandbox(host.try_sandbox().await),
        cgroups(host).await,
        process_limits(host.process_limits().await.as_ref()),
        enough(
            "inotify watches",
            host.number("/proc/sys/fs/inotify/max_user_watches").await,
            MIN_WATCHES,
            "raise it with `sysctl fs.inotify.max_user_watches=524288`",
        ),
        enough(
            "inotify instances",
            host.number("/proc/sys/fs/inotify/max_user_instances").await,
            MIN_INSTANCES,
            "raise it with `sysctl fs.inotify.max_user_instances=512`",
        ),
    ];
    findings.extend(container(host).await);
    findings
}

/// Reports whether the host is a container.
async fn container(host: &Host<'_>) -> Option<Finding> {
    let mut is_container = false;
    for mark in ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"] {
        is_container |= host.read(mark).await.is_some();
    }
    if !is_container {
        // Only root may read it.
        let variables = host.read("/proc/1/environ").await.unwrap_or_default();
        is_container = variables.split('\0').any(|variable| variable.starts_with("container="));
    }
    let what = "this is a container: its processes end with it, also durable ones";
    is_container.then(|| Finding::ok("container", what))
}

fn kernel(release: Option<&str>) -> Finding {
    const NAME: &str = "kernel";
    let Some(release) = release.map(str::trim) else {
        return Finding::new(NAME, Verdict::Skipped, "version unknown");
    };
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
    let version = (numbers.next().and_then(Result::ok), numbers.next().and_then(Result::ok));
    match version {
        (Some(major), Some(minor)) if (major, minor) < OLDEST_KERNEL => {
            Finding::new(NAME, Verdict::Failed, format!("Linux {release} is too old"))
                .with_hint("update to Linux 5.9 or newer")
        }
        _ => Finding::ok(NAME, format!("Linux {release}")),
    }
}

fn enough(name: &'static str, found: Option<u64>, wanted: u64, hint: &str) -> Finding {
    match found {
        None => Finding::new(name, Verdict::Skipped, "unknown"),
        Some(u64::MAX) => Finding::ok(name, "no limit"),
        Some(found) if found < wanted => {
            Finding::new(name, Verdict::Warning, format!("at most {found}, which is low")).with_hint(hint)
        }
        Some(found) => Finding::ok(name, format!("at most {found}")),
    }
}

/// Checks whether a server can tag its processes, so that it finds all of them when it ends them.
fn tags(limits: &str) -> Finding {
    const NAME: &str = "process tags";
    const HINT: &str =
        "start the server with `prlimit --locks=unlimited`, or `LimitLOCKS=infinity` in its unit";
    let rows = ["Max file locks", "Max resident set", "Max realtime timeout"];
    let has_room = |row: &&str| hard_limit(limits, row).is_some_and(|most| most >= MAX_TAG);
    match rows.iter().position(has_room) {
        _ if limits.is_empty() => Finding::new(NAME, Verdict::Skipped, "unknown"),
        Some(0) => Finding::ok(NAME, "available (RLIMIT_LOCKS)"),
        Some(index) => {
            let what = format!("the hard limit on file locks is too low; `{}` is used instead", rows[index]);
            Finding::new(NAME, Verdict::Warning, what).with_hint(HINT)
        }
        None => {
            let what = "the hard limit on file locks is too low, and so are the alternatives: descendants that outlive their \
                        process or move to another session may keep running";
            Finding::new(NAME, Verdict::Warning, what).with_hint(HINT)
        }
    }
}

async fn memory(host: &Host<'_>) -> Finding {
    const NAME: &str = "memory";
    let table = host.read("/proc/meminfo").await.unwrap_or_default();
    let Some(available) = entry(&table, "MemAvailable:").map(|kib| kib.saturating_mul(1024)) else {
        return Finding::new(NAME, Verdict::Skipped, "unknown");
    };
    let what = format!("{} available", size(available));
    if available < MIN_MEMORY {
        return Finding::new(NAME, Verdict::Warning, what)
            .with_hint("end processes that use much memory, or add memory");
    }
    Finding::ok(NAME, what)
}

fn space(directory: &str, free: Option<u64>) -> Finding {
    const NAME: &str = "temporary files";
    match free {
        None => Finding::new(NAME, Verdict::Skipped, format!("free space in `{directory}` unknown")),
        Some(0) => {
            Finding::new(NAME, Verdict::Failed, format!("`{directory}` is full")).with_hint("remove files")
        }
        Some(free) if free < MIN_SPACE => {
            Finding::new(NAME, Verdict::Warning, format!("{} free in `{directory}`", size(free)))
                .with_hint("remove files, or set TMPDIR to a directory with more space")
        }
        Some(free) => Finding::ok(NAME, format!("{} free in `{directory}`", size(free))),
    }
}

/// Reports whether processes can be confined, by confining one.
fn sandbox(tried: Result<Option<Confinement>, Error>) -> Finding {
    const NAME: &str = "sandbox";
    match tried {
        Ok(None) => Finding::ok(NAME, "commands can be confined"),
        Ok(Some(confinement)) => confined(NAME, &confinement),
        Err(error) => {
            let finding =
                Finding::new(NAME, Verdict::Warning, "commands cannot be confined; such starts are refused");
            finding.with_hint(error.hint().map_or_else(|| error.message(), str::to_owned))
        }
    }
}

/// Reports the available and the missing means of confinement.
fn confined(name: &'static str, confinement: &Confinement) -> Finding {
    let finding = match (confinement.processes, confinement.landlock_abi) {
        (ProcessConfinement::Namespaces, Some(abi)) => {
            Finding::ok(name, format!("commands can be confined, by namespaces and Landlock (ABI {abi})"))
        }
        (ProcessConfinement::Namespaces, None) => {
            Finding::ok(name, "commands can be confined, by namespaces; the kernel has no Landlock")
        }
        (ProcessConfinement::Unknown, _) => {
            let what = "commands are confined in a way that this version of remex does not know";
            let reason = confinement.reason.as_ref().map(|reason| format!("; {reason}"));
            Finding::new(name, Verdict::Warning, format!("{what}{}", reason.unwrap_or_default()))
        }
        (_, _) => {
            let what = "only commands that write no files and have no network can be confined, by Landlock";
            let reason = confinement.reason.as_ref().map(|reason| format!("; {reason}"));
            Finding::new(name, Verdict::Warning, format!("{what}{}", reason.unwrap_or_default()))
        }
    };
    match &confinement.hint {
        Some(hint) => finding.with_hint(hint.clone()),
        None => finding,
    }
}

async fn cgroups(host: &Host<'_>) -> Finding {
    let what = match host.read("/sys/fs/cgroup/cgroup.controllers").await {
        Some(controllers) => format!("version 2 ({})", controllers.trim()),
        None => "version 2 not mounted at /sys/fs/cgroup".to_owned(),
    };
    Finding::ok("cgroups", format!("{what}; not required"))
}

/// Reports how the server enforces the limits of `remex run --limit`.
fn process_limits(limits: Option<&ProcessLimits>) -> Finding {
    const NAME: &str = "process limits";
    let Some(limits) = limits else {
        return Finding::new(NAME, Verdict::Skipped, "this server does not support them");
    };
    let all = [
        ("cpu", limits.cpu_seconds),
        ("memory", limits.memory_bytes),
        ("files", limits.open_files),
        ("processes", limits.processes),
        ("file-size", limits.file_bytes),
    ];
    let groups = [
        ("by cgroup", LimitMethod::Cgroup),
        ("by rlimit", LimitMethod::Rlimit),
        ("not possible", LimitMethod::Unavailable),
        ("in an unknown way", LimitMethod::Unknown),
    ];
    let groups = groups.iter().filter_map(|(words, method)| {
        let names: Vec<_> = all.iter().filter(|(_, found)| found == method).map(|(name, _)| *name).collect();
        (!names.is_empty()).then(|| format!("{words}: {}", names.join(", ")))
    });
    let mut what = groups.collect::<Vec<_>>().join("; ");
    if let Some(why) = &limits.without_cgroup {
        what = format!("{what} ({why})");
    }
    Finding::ok(NAME, what)
}

/// Returns the soft limit in a table such as `/proc/self/limits`; [`u64::MAX`] if unlimited.
fn limit(table: &str, name: &str) -> Option<u64> {
    number_or_none(table.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?)
}

/// Returns the hard limit.
fn hard_limit(table: &str, name: &str) -> Option<u64> {
    number_or_none(table.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().nth(1)?)
}

fn number_or_none(limit: &str) -> Option<u64> {
    if limit == "unlimited" { Some(u64::MAX) } else { limit.parse().ok() }
}

fn entry(table: &str, name: &str) -> Option<u64> {
    table.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Parses the available bytes in the output of `df -P -k`.
fn available(table: &str) -> Option<u64> {
    let kib: u64 = table.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_the_tables_of_the_system() {
        let limits = "Limit          Soft Limit   Hard Limit   Units\n\
                      Max open files            256        4096    files\n\
                      Max processes             unlimited  unlimited  processes\n";
        assert_eq!(limit(limits, "Max open files"), Some(256));
        assert_eq!(limit(limits, "Max processes"), Some(u64::MAX));
        assert_eq!(limit(limits, "Max address space"), None);
        let df = "Filesystem 1024-blocks Used Available Capacity Mounted on\ntmpfs 100 60 40 60% /tmp\n";
        assert_eq!(available(df), Some(40 * 1024));
        assert_eq!(entry("MemTotal: 7 kB\nMemAvailable:    5 kB\n", "MemAvailable:"), Some(5));
    }

    #[test]
    fn limits_are_grouped_by_what_enforces_them() {
        let mut limits = ProcessLimits::new(LimitMethod::Rlimit);
        limits.memory_bytes = LimitMethod::Cgroup;
        limits.processes = LimitMethod::Cgroup;
        let what = |limits: &ProcessLimits| process_limits(Some(limits)).what;
        assert_eq!(what(&limits), "by cgroup: memory, processes; by rlimit: cpu, files, file-size");
        limits.memory_bytes = LimitMethod::Rlimit;
        limits.processes = LimitMethod::Unavailable;
        limits.without_cgroup = Some("none is mounted".to_owned());
        let expected = "by rlimit: cpu, memory, files, file-size; not possible: processes (none is mounted)";
        assert_eq!(what(&limits), expected);
        assert_eq!(process_limits(None).verdict, Verdict::Skipped);
    }

    #[test]
    fn tags_need_one_high_limit() {
        let table = |[locks, resident, time]: [&str; 3]| {
            format!(
                "Max file locks            unlimited  {locks}  locks\n\
                 Max resident set          5          {resident}  bytes\n\
                 Max realtime timeout      unlimited  {time}  us\n"
            )
        };
        for (limits, verdict, part) in [
            (["unlimited", "1", "1"], Verdict::Ok, "RLIMIT_LOCKS"),
            (["9223372036854775807", "1", "1"], Verdict::Ok, "RLIMIT_LOCKS"),
            (["1000", "unlimited", "1"], Verdict::Warning, "Max resident set"),
            (["1000", "1", "unlimited"], Verdict::Warning, "Max realtime timeout"),
            (["1000", "1", "1"], Verdict::Warning, "may keep running"),
        ] {
            let finding = tags(&table(limits));
            assert_eq!(finding.verdict, verdict, "{limits:?}");
            assert!(finding.what.contains(part), "{}", finding.what);
        }
        assert_eq!(tags("").verdict, Verdict::Skipped);
    }

    #[test]
    fn scarce_resources_are_warnings_and_outdated_software_is_a_problem() {
        assert_eq!(enough("open files", Some(256), 1024, "raise it").verdict, Verdict::Warning);
        assert_eq!(enough("open files", Some(u64::MAX), 1024, "raise it").verdict, Verdict::Ok);
        for (release, verdict) in [
            ("6.1.0-18-amd64\n", Verdict::Ok),
            ("5.9.0", Verdict::Ok),
            ("5.8.18", Verdict::Failed),
            ("4.19", Verdict::Failed),
        ] {
            assert_eq!(kernel(Some(release)).verdict, verdict, "{release}");
        }
        assert_eq!(space("/tmp", Some(0)).verdict, Verdict::Failed);
        assert_eq!(space("/tmp", Some(1 << 20)).verdict, Verdict::Warning);
    }
}
