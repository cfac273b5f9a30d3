//! What the kernel tells about a process in `/proc`.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

/// Ticks per second of the times in `/proc`; Linux promises 100 to programs whatever it uses itself.
const TICKS_PER_SECOND: u64 = 100;

/// What a server holds at one moment, in all its processes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holdings {
    pub(crate) rss_kib: f64,
    pub(crate) threads: f64,
    pub(crate) descriptors: f64,
}

impl Holdings {
    pub(crate) fn of(pids: &[u32]) -> Result<Self> {
        let mut all = Self::default();
        for pid in pids {
            // The quick counters in `status` may be off by megabytes on many cores; the roll-up counts pages.
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
            all.rss_kib += field(&rollup, "Rss:")?;
            all.threads += field(&status, "Threads:")?;
            all.descriptors += fs::read_dir(format!("/proc/{pid}/fd"))?.count() as f64;
        }
        Ok(all)
    }
}

/// The most that each of these processes ever had resident, added up.
pub(crate) fn peak_rss_kib(pids: &[u32]) -> Result<f64> {
    let peak = |pid| field(&fs::read_to_string(format!("/proc/{pid}/status"))?, "VmHWM:");
    pids.iter().map(peak).sum()
}

/// CPU time of all threads of these processes, their children excluded.
pub(crate) fn cpu_time(pids: &[u32]) -> Result<Duration> {
    pids.iter().map(|pid| cpu_time_of(*pid)).sum()
}

fn cpu_time_of(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may contain anything but ends with the last parenthesis; the state follows as field 3.
    let (_, fields) = stat.rsplit_once(')').context("a stat line has no name")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Whether any process runs with this word among its arguments.
pub(crate) fn is_running(argument: &str) -> Result<bool> {
    Ok(fs::read_dir("/proc")?.flatten().any(|entry| {
        fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| line.split(|&byte| byte == 0).any(|word| word == argument.as_bytes()))
    }))
}

fn field(text: &str, name: &str) -> Result<f64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
        .with_context(|| format!("the kernel does not tell `{name}`"))
}
