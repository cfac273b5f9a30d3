//! Accounts of the host, as which processes can run: looked up by name or number, with their groups.
//!
//! `getent` also knows the accounts of directory services, whatever C library this program has; without it, the files in
//! `/etc` do. No PAM module is asked, and nothing of an account is remembered. Blocks. Start at [`UserAccount::find`].

use std::{fs, io, path::PathBuf, process::Command, time::Duration};

use remex_process::{UserIds, run_with_timeout};
use remex_proto::{ErrorKind, RpcError};

/// How long a directory service may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The exit code of `getent` for an unknown key.
const NOT_FOUND: i32 = 2;

/// An account of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserAccount {
    pub(crate) name: String,
    pub(crate) ids: UserIds,
    pub(crate) home: PathBuf,
    pub(crate) shell: PathBuf,
}

/// A line of the list of accounts.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    name: String,
    uid: u32,
    gid: u32,
    home: PathBuf,
    shell: PathBuf,
}

/// How an account is named.
#[derive(Clone, Copy, Debug)]
enum Key<'a> {
    Name(&'a str),
    Uid(u32),
}

impl<'a> Key<'a> {
    /// Returns the key; `None` for a text that names no account on any host.
    fn parse(text: &'a str) -> Option<Self> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().ok().map(Key::Uid);
        }
        let is_odd = |letter: char| letter.is_control() || matches!(letter, ':' | ',' | '/' | ' ');
        let is_name = !text.is_empty() && !text.starts_with('-') && !text.contains(is_odd);
        is_name.then_some(Key::Name(text))
    }

    fn text(self) -> String {
        match self {
            Key::Name(name) => name.to_owned(),
            Key::Uid(uid) => uid.to_string(),
        }
    }

    fn names(self, line: &Line) -> bool {
        match self {
            Key::Name(name) => line.name == name,
            Key::Uid(uid) => line.uid == uid,
        }
    }
}

impl UserAccount {
    /// Looks an account up by its name, or by its number in decimal digits.
    ///
    /// # Errors
    ///
    /// If there is none, or the host cannot tell.
    pub(crate) fn find(text: &str) -> Result<Self, RpcError> {
        let key = Key::parse(text).ok_or_else(|| unknown(text))?;
        let found =
            ask("passwd", &key.text(), "/etc/passwd").map_err(|error| cannot_look_up(text, &error))?;
        let line = found.lines().filter_map(Line::parse).find(|line| key.names(line));
        let Line { name, uid, gid, home, shell } = line.ok_or_else(|| unknown(text))?;
        let groups = groups_of(&name).map_err(|error| cannot_look_up(text, &error))?;
        let ids = UserIds::new(uid, gid, groups).ok_or_else(|| unusable(text))?;
        Ok(Self { name, ids, home, shell })
    }
}

impl Line {
    /// Reads a line: name, password, uid, gid, comment, home, shell.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<_> = line.split(':').collect();
        let &[name, _, uid, gid, _, home, shell] = fields.as_slice() else { return None };
        let path = |field: &str, default: &str| PathBuf::from(if field.is_empty() { default } else { field });
        let (home, shell) = (path(home, "/"), path(shell, "/bin/sh"));
        Some(Line { name: name.to_owned(), uid: uid.parse().ok()?, gid: gid.parse().ok()?, home, shell })
    }
}

/// Returns the groups that an account is listed in.
fn groups_of(name: &str) -> io::Result<Vec<u32>> {
    match getent("initgroups", name)? {
        // The name, and numbers.
        Some(Ok(line)) => {
            Ok(line.split_whitespace().skip(1).filter_map(|number| number.parse().ok()).collect())
        }
        // A `getent` that does not know this.
        Some(Err(_)) | None => Ok(listed_in(&fs::read_to_string("/etc/group")?, name)),
    }
}

/// Returns the groups with this member in the lines of `/etc/group`: name, password, gid, members.
fn listed_in(groups: &str, name: &str) -> Vec<u32> {
    let gid = |line: &str| {
        let fields: Vec<_> = line.split(':').collect();
        let &[_, _, gid, members] = fields.as_slice() else { return None };
        members.split(',').any(|member| member == name).then(|| gid.parse().ok()).flatten()
    };
    groups.lines().filter_map(gid).collect()
}

/// Returns the lines about a key in a database of the host.
fn ask(database: &str, key: &str, file: &str) -> io::Result<String> {
    match getent(database, key)? {
        Some(Ok(lines)) => Ok(lines),
        Some(Err(NOT_FOUND)) => Ok(String::new()),
        Some(Err(_)) | None => fs::read_to_string(file),
    }
}

/// Returns what `getent` prints or, if it fails, what it exits with; `None` on a host without it.
fn getent(database: &str, key: &str) -> io::Result<Option<Result<String, i32>>> {
    let mut command = Command::new("getent");
    command.args([database, key]);
    match run_with_timeout(command, PATIENCE) {
        Ok((status, text)) if status.success() => Ok(Some(Ok(text))),
        Ok((status, _)) => Ok(Some(Err(status.code().unwrap_or(-1)))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn unknown(text: &str) -> RpcError {
    let message = format!("there is no user `{}` on this host", text.escape_debug());
    RpcError::new(ErrorKind::InvalidParams, message)
        .with_hint("check the name, or give the uid of an account in decimal digits")
}

fn unusable(text: &str) -> RpcError {
    let message = format!("cannot run anything as user `{text}`: its numbers are reserved");
    RpcError::new(ErrorKind::InvalidParams, message).with_hint("name another user")
}

fn cannot_look_up(text: &str, error: &io::Error) -> RpcError {
    let message = format!("cannot look up user `{text}` on this host: {error}");
    RpcError::new(ErrorKind::UserUnavailable, message)
        .with_hint("check on the host that `getent passwd` answers, or try again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_by_name_and_by_number() {
        let root = UserAccount::find("root").unwrap();
        assert_eq!((root.ids.uid(), root.ids.gid(), &*root.name), (0, 0, "root"));
        assert!(root.home.is_absolute() && root.shell.is_absolute());
        assert_eq!(UserAccount::find("0").unwrap(), root);
    }

    #[test]
    fn a_text_that_names_no_account_is_refused_with_what_was_asked_for() {
        for text in ["no-such-user", "", "-h", "--help", "a:b", "a\nb", "4294967294", "99999999999", "root,x"]
        {
            let error = UserAccount::find(text).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidParams, "{text}");
            assert!(error.message.contains(&*text.escape_debug().to_string()), "{}", error.message);
        }
    }

    #[test]
    fn a_line_without_home_or_shell_has_the_usual_ones() {
        let line = Line::parse("ann:x:1000:1001:Ann,,::").unwrap();
        let (home, shell) = ("/".into(), "/bin/sh".into());
        assert_eq!(line, Line { name: "ann".into(), uid: 1000, gid: 1001, home, shell });
        for broken in ["", "ann:x:1000", "ann:x:-1:0:::", "ann:x::0:::", "a:x:1:1:b:c:d:e"] {
            assert_eq!(Line::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn groups_list_the_user_by_name() {
        let groups = "adm:x:4:ann,bob\nann:x:1000:\nbroken\nwheel:x:10:joann,annie\nvideo:x:44:bob,ann\n";
        assert_eq!(listed_in(groups, "ann"), [4, 44]);
    }
}
