//! Information about this host for clients.
//!
//! Nothing here fails: unknown values have usable defaults. Start at [`inspect`].

use std::{
    env,
    ffi::OsString,
    fmt::Write as _,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use remex_proto::{
    HostPath,
    environment::{Info, Shell},
};
use remex_server::HostInfo;
use rustix::{fs::Access, process::geteuid};
use sha2::{Digest as _, Sha256};

/// Shells of accounts without login; they run no commands.
const NO_SHELLS: [&str; 2] = ["nologin", "false"];

/// Collects information about this host.
pub(crate) fn inspect() -> HostInfo {
    let user = User::own();
    let temporary = directory("TMPDIR");
    let mut info = Info::new(shell(user.as_ref()));
    env!("CARGO_PKG_VERSION").clone_into(&mut info.executor_version);
    info.provider_id = provider_id();
    info.cwd = Some(HostPath::from(cwd()));
    info.user_home_dir = directory("HOME").or(user.map(|user| user.home)).map(HostPath::from);
    env::consts::OS.clone_into(&mut info.platform_os);
    info.temporary_directories = temporary.iter().cloned().map(HostPath::from).collect();
    info.temp_dir = Some(HostPath::from(temporary.unwrap_or_else(|| PathBuf::from("/tmp"))));
    info.capabilities.network_proxy_launch = true;
    info.capabilities.capability_discovery_v2 = true;
    info.capabilities.capability_discovery_sandbox = true;
    info.capabilities.fs_watch_missing = true;
    info.capabilities.environment_config_read = true;
    info.capabilities.http_header_env_vars = true;
    info.capabilities.sandboxed_file_streaming = true;
    info.capabilities.file_write_streaming = true;
    info.capabilities.shell_snapshot_v2 = true;
    info.capabilities.process_restart_request = true;
    info.capabilities.process_incarnation = true;
    let codex_home = env::var_os("CODEX_HOME")
        .filter(|home| !home.is_empty())
        .map(|home| std::path::absolute(&home).unwrap_or_else(|_| home.into()));
    HostInfo { info, hostname: hostname(), codex_home, codex_system_dir: PathBuf::from("/etc/codex") }
}

/// Returns the home of this process's user, whatever the environment says.
pub(crate) fn home() -> Option<PathBuf> {
    User::own().map(|user| user.home).filter(|home| home.is_absolute())
}

/// An entry of `/etc/passwd`.
#[derive(Debug, PartialEq, Eq)]
struct User {
    home: PathBuf,
    shell: PathBuf,
}

impl User {
    /// Returns the entry of this process's user.
    fn own() -> Option<Self> {
        std::fs::read("/etc/passwd").ok().and_then(|users| Self::find(&users, geteuid().as_raw()))
    }

    /// Looks for a uid in the lines of `/etc/passwd`: name, password, uid, gid, comment, home, shell.
    fn find(users: &[u8], uid: u32) -> Option<Self> {
        users.split(|byte| *byte == b'\n').find_map(|line| {
            let fields: Vec<_> = line.split(|byte| *byte == b':').collect();
            let &[_, _, number, _, _, home, shell] = fields.as_slice() else { return None };
            let path = |field: &[u8]| PathBuf::from(OsString::from_vec(field.to_owned()));
            (number == uid.to_string().as_bytes()).then(|| User { home: path(home), shell: path(shell) })
        })
    }
}

/// Returns the user's login shell, else the one in `SHELL`, else `/bin/sh`.
fn shell(user: Option<&User>) -> Shell {
    let candidates = user.map(|user| user.shell.clone()).into_iter().chain(directory("SHELL"));
    candidates.filter_map(|path| usable_shell(&path)).next().unwrap_or_else(|| Shell::new("sh", "/bin/sh"))
}

fn usable_shell(path: &Path) -> Option<Shell> {
    let name = path.file_name()?.to_str()?;
    let runs = path.is_absolute() && path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok();
    (runs && !NO_SHELLS.contains(&name)).then_some(Shell::new(name, path.to_str()?))
}

/// Returns the absolute path in a variable.
fn directory(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn cwd() -> PathBuf {
    env::current_dir().unwrap_or_else(|error| {
        tracing::warn!(error = %error, "cannot determine the working directory; using `/`");
        PathBuf::from("/")
    })
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns an id of this installation on this host that reveals nothing about either.
fn provider_id() -> String {
    let machine = std::fs::read("/etc/machine-id").unwrap_or_else(|_| hostname().into_bytes());
    let program = env::current_exe().unwrap_or_default();
    let mut digest = Sha256::new();
    for part in [b"remex", machine.as_slice(), program.as_os_str().as_bytes()] {
        digest.update(part);
        digest.update([0]);
    }
    digest.update(geteuid().as_raw().to_be_bytes());
    digest.finalize().iter().fold("sha256:".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_number() {
        let users =
            b"root:x:0:0:root:/root:/bin/bash\nbroken\nann:x:1000:1000:Ann,,:/home/ann:/bin/zsh\nx:x:10:1::/:\n";
        let ann = User { home: "/home/ann".into(), shell: "/bin/zsh".into() };
        assert_eq!(User::find(users, 1000), Some(ann));
        assert_eq!(User::find(users, 10), Some(User { home: "/".into(), shell: "".into() }));
        assert_eq!(User::find(users, 1), None);
        assert_eq!(User::find(b"", 0), None);
    }

    #[test]
    fn a_shell_that_refuses_logins_is_not_a_shell() {
        assert_eq!(usable_shell(Path::new("/bin/sh")), Some(Shell::new("sh", "/bin/sh")));
        for path in ["", "sh", "/", "/bin", "/bin/false", "/usr/sbin/nologin", "/etc/passwd", "/nowhere/sh"] {
            assert_eq!(usable_shell(Path::new(path)), None, "{path}");
        }
    }
}
