//! Reads processes from `/proc`.

use std::{
    ffi::CStr,
    fs::{self, File},
    io::{self, Read, Write as _},
    str,
    time::Duration,
};

use rustix::fs::{Mode, OFlags};

use crate::{
    Pid, Tag,
    base::{sys, tag_limit::TagLimit},
};

/// Longer than any line of `/proc/PID/stat`.
const STAT_LEN: usize = 1024;
/// Longer than `/proc/PID/limits`.
const LIMITS_LEN: usize = 4096;

/// The flag of a process that is exiting.
const PF_EXITING: i64 = 4;

/// The flag of a process that has not executed a program since it was forked.
const PF_FORKNOEXEC: i64 = 0x40;

/// A live process of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its pid.
    pub pid: Pid,
    /// Its parent; `None` for init.
    pub parent: Option<Pid>,
    /// Its process group.
    pub group: Option<Pid>,
    /// Its session.
    pub session: Option<Pid>,
    /// The tag of its start, unless it lost it.
    pub tag: Option<Tag>,
    /// CPU time of the process and of the children it waited for.
    pub cpu: Duration,
    /// Memory in use.
    pub resident_bytes: u64,
    /// Its start time in ticks since boot: with the pid, it identifies one process uniquely.
    pub(crate) started: u64,
    /// Whether it has executed a program since it was forked.
    pub(crate) has_executed: bool,
    /// Whether it is exiting and no longer runs any code; its children may not be orphaned yet.
    pub(crate) is_exiting: bool,
}

/// Lists every process except init and this one.
pub(crate) fn pids() -> io::Result<Vec<Pid>> {
    let own = std::process::id().cast_signed();
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        pids.extend(number.and_then(Pid::new).filter(|pid| pid.as_raw() != own));
    }
    Ok(pids)
}

/// Returns the number most recently assigned to a process or thread, if `/proc` reports it.
pub(crate) fn newest_pid() -> Option<i32> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    load.split_whitespace().last()?.parse().ok()
}

/// Reads the tag of a process; `None` if it has none or has ended.
///
/// Allocates nothing once the [`TagLimit`] is chosen, because the [`watchdog`](crate::launch::watchdog) uses it.
///
/// # Errors
/// If the host lacks descriptors or memory to read it.
pub(crate) fn tag(pid: Pid) -> io::Result<Option<Tag>> {
    let Some(tag_limit) = TagLimit::chosen() else { return Ok(None) };
    let limit = match sys::limit(pid.as_raw(), tag_limit.resource) {
        // A process of another user, such as a set-user-id program; its limits file is world-readable.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            unless_gone(listed_limit(pid, tag_limit.row))?.flatten()
        }
        other => unless_gone(other)?.map(|limit| limit.rlim_cur),
    };
    Ok(limit.and_then(Tag::from_limit))
}

fn listed_limit(pid: Pid, row: &str) -> io::Result<Option<u64>> {
    let mut path = [0; 32];
    write!(&mut path[..], "/proc/{pid}/limits")?;
    let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = [0; LIMITS_LEN];
    let len = rustix::io::read(&file, &mut text)?;
    let text = text.get(..len).and_then(|text| str::from_utf8(text).ok()).unwrap_or("");
    let numbers = text.lines().find_map(|line| line.strip_prefix(row));
    Ok(numbers.and_then(|numbers| numbers.split_whitespace().next()?.parse().ok()))
}

/// Reads the statistics of a process; `None` if it has ended, reaped or not.
///
/// # Errors
/// If the host lacks descriptors or memory to read it.
pub(crate) fn member(pid: Pid, tag: Option<Tag>) -> io::Result<Option<Member>> {
    let found = unless_gone(stat(pid, tag))?.flatten();
    Ok(found.filter(|(_, has_ended)| !has_ended).map(|(member, _)| member))
}

/// Reads the statistics of a process, and whether it is a zombie; `None` if it was reaped.
pub(crate) fn any_member(pid: Pid) -> Option<(Member, bool)> {
    stat(pid, tag(pid).ok()?).ok()?
}

fn stat(pid: Pid, tag: Option<Tag>) -> io::Result<Option<(Member, bool)>> {
    let mut line = [0; STAT_LEN];
    let len = File::open(format!("/proc/{pid}/stat"))?.read(&mut line)?;
    Ok(parse(pid, tag, &line[..len]))
}

/// Returns the parent of a process, even of a zombie.
pub(crate) fn parent(pid: Pid) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Pid::new(parent.trim().parse().ok()?)
}

/// Returns whether an error is a temporary resource shortage of the host, unrelated to the process.
pub(crate) fn is_resource_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Maps errors to `None`, except for resource shortages: a process that cannot be read has ended or is hidden from this
/// user.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_resource_shortage(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Parses `/proc/PID/stat`; returns the process, and whether it has ended.
fn parse(pid: Pid, tag: Option<Tag>, line: &[u8]) -> Option<(Member, bool)> {
    // The name comes second, in parentheses, and may contain anything, including parentheses and line feeds.
    let end_of_name = line.iter().rposition(|&byte| byte == b')')?;
    let mut fields = str::from_utf8(&line[end_of_name + 1..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let mut number = |skip: usize| fields.nth(skip)?.parse::<i64>().ok();
    let parent = number(0)?;
    let group = number(0)?;
    let session = number(0)?;
    let flags = number(2)?;
    // User and system time, then those of the children it waited for.
    let ticks = number(4)? + number(0)? + number(0)? + number(0)?;
    let threads = number(2)?;
    let started = number(1)?;
    let pages = number(1)?;
    // The first thread of a process may end while others run; such a process is alive.
    let is_zombie = matches!(state, "Z" | "X") && threads < 2;
    // The first process of a jail becomes a zombie only after all others there are reaped; until then it is exiting.
    let is_ending_init = tag.is_some_and(Tag::is_init) && flags & PF_EXITING != 0;
    let (ticks_per_second, page_len) = sys::proc_units();
    let other = |number: i64| i32::try_from(number).ok().and_then(Pid::new);
    let positive = |number: i64| u64::try_from(number).unwrap_or(0);
    let member = Member {
        pid,
        parent: other(parent),
        group: other(group),
        session: other(session),
        tag,
        cpu: Duration::from_millis(positive(ticks) * 1000 / ticks_per_second),
        resident_bytes: positive(pages) * page_len,
        started: positive(started),
        has_executed: flags & PF_FORKNOEXEC == 0,
        is_exiting: flags & PF_EXITING != 0 && threads < 2,
    };
    Some((member, is_zombie || is_ending_init))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str =
        "7 8 9 0 -1 4194560 100 0 0 0 150 50 25 25 20 0 3 0 4711 8192000 25 18446744073709551615 1 1";

    #[test]
    fn a_hostile_process_name_does_not_shift_the_fields() {
        let (ticks_per_second, page_len) = sys::proc_units();
        let pid = Pid::new(42).unwrap();
        for name in ["cat", "a b", ") R 1 1 1", "x\n) Z 1", "((("] {
            let member = parse(pid, None, format!("42 ({name}) S {REST}\n").as_bytes());
            let expected = Member {
                pid,
                parent: Pid::new(7),
                group: Pid::new(8),
                session: Pid::new(9),
                tag: None,
                cpu: Duration::from_millis(250_000 / ticks_per_second),
                resident_bytes: 25 * page_len,
                started: 4711,
                has_executed: true,
                is_exiting: false,
            };
            assert_eq!(member, Some((expected, false)), "{name}");
        }
    }

    #[test]
    fn a_zombie_is_not_a_member_but_a_process_without_its_main_thread_is() {
        let pid = Pid::new(42).unwrap();
        let line = |rest: &str| format!("42 (x) Z {rest}");
        let has_ended = |rest: &str| parse(pid, None, line(rest).as_bytes()).map(|(_, has_ended)| has_ended);
        assert_eq!(has_ended(REST), Some(false));
        assert_eq!(has_ended(&REST.replace(" 20 0 3 ", " 20 0 1 ")), Some(true));
    }

    #[test]
    fn a_truncated_line_is_not_a_member() {
        let line = format!("42 (x) S {REST}");
        for len in 0..70 {
            assert_eq!(parse(Pid::new(42).unwrap(), None, &line.as_bytes()[..len]), None, "{len}");
        }
    }
}
