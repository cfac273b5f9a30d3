//! Finds the cgroup of this program, and whether its manager has delegated it.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

/// The attributes that systemd sets on a cgroup that it delegates. Only root can read the first one.
const MARKS: [&str; 2] = ["trusted.delegate", "user.delegate"];

/// Returns the directory of the cgroup of version 2 that this program is in.
pub(super) fn own_cgroup() -> Option<PathBuf> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    let directory = locate(&membership, &mounts)?;
    fs::canonicalize(directory).ok()
}

/// Returns whether the manager of a cgroup has delegated it, and this program may divide it.
pub(super) fn is_delegated(cgroup: &Path) -> bool {
    let is_marked = MARKS.iter().any(|mark| {
        let mut value = [0; 8];
        rustix::fs::getxattr(cgroup, *mark, &mut value[..]).is_ok_and(|len| value.get(..len) == Some(b"1"))
    });
    is_marked && rustix::fs::access(cgroup, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Joins the mount point of version 2 and the path of the program in it.
fn locate(membership: &str, mounts: &[u8]) -> Option<PathBuf> {
    let path = membership.lines().find_map(|line| line.strip_prefix("0::/"))?;
    mounts.split(|byte| *byte == b'\n').find_map(|line| {
        // Number, parent, device, root, mount point, options, optional fields, a dash, then the type.
        let fields: Vec<_> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        if fields.get(dash + 1) != Some(&&b"cgroup2"[..]) {
            return None;
        }
        let root = PathBuf::from(unescape(fields.get(3)?));
        let below = Path::new("/").join(path).strip_prefix(root).ok()?.to_owned();
        Some(PathBuf::from(unescape(fields.get(4)?)).join(below))
    })
}

/// Replaces `\040` and the like by the bytes they stand for.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let code = after.get(..3).filter(|_| *first == b'\\').and_then(|code| {
            code.iter().try_fold(0_u32, |sum, digit| Some(sum * 8 + char::from(*digit).to_digit(8)?))
        });
        match code.and_then(|code| u8::try_from(code).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &[u8] = b"24 1 0:22 / /sys rw shared:2 - sysfs sysfs rw\n\
        30 24 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n\
        31 24 0:27 / /sys/fs/cgroup/pids rw shared:10 - cgroup cgroup rw,pids\n";

    #[test]
    fn the_cgroup_is_found_below_the_mount_point_of_version_2() {
        let membership = "8:pids:/x\n0::/system.slice/remex.service\n";
        let found = locate(membership, HYBRID);
        assert_eq!(found, Some("/sys/fs/cgroup/unified/system.slice/remex.service".into()));
        assert_eq!(locate("0::/\n", HYBRID), Some("/sys/fs/cgroup/unified/".into()));
        assert_eq!(locate("8:pids:/x\n", HYBRID), None);
        assert_eq!(locate(membership, b"24 1 0:22 / /sys rw - sysfs sysfs rw\n"), None);
    }

    #[test]
    fn a_partial_mount_shows_only_its_part() {
        let mounts: &[u8] = b"30 24 0:26 /a /mnt/my\\040groups rw - cgroup2 none rw\n";
        assert_eq!(locate("0::/a/b\n", mounts), Some("/mnt/my groups/b".into()));
        assert_eq!(locate("0::/other\n", mounts), None);
    }
}
