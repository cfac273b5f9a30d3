//! Shell snapshots: what the files of a shell set up, captured once and restored at later starts.
//!
//! A session captures one for each scope, shell, directory, policy and sandbox. The capture runs the login shell
//! with the environment of the start that needs it first, within a time limit, and lets it also read the file that an
//! interactive shell reads. What differs from that environment is restored in that of later starts; functions, aliases
//! and options are restored by a script that the shell evaluates before the command. Start at [`Snapshots`].

mod capture;
mod shell;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    sync::{Arc, Mutex},
    time::Duration,
};

use remex_access::{
    account::{Account, Charge, Kind},
    scope::Floor,
};
use remex_base::lock;
use remex_process::{Spawner, Start, Tag};
use remex_proto::{
    ErrorKind, HostPath, RpcError,
    environment::{self, EnvPolicy},
    process as wire,
    sandbox::Sandbox,
};
use tokio::sync::OnceCell;

use capture::{Capture, Failed, Found};
use shell::{Files, Shell};

use crate::process::LOG_TARGET;

/// The most snapshots of a session; the oldest is dropped.
const MAX_SNAPSHOTS: usize = 16;

/// The longest scope, in bytes.
const MAX_SCOPE: usize = 256;

/// The most bytes of a snapshot.
const MAX_LEN: usize = 512 << 10;

/// The length of the part of a script in one variable: the kernel limits each to 128 KiB with its name.
const PART_LEN: usize = 96 << 10;

/// The names of the variables with the parts of a script, which the shell unsets before anything else.
const PART: &str = "__REMEX_SHELL_SNAPSHOT_";

/// Variables that belong to one run of a shell.
const OWN: [&str; 7] = ["_", "SHLVL", "PWD", "OLDPWD", "SHELLOPTS", "BASHOPTS", "BASH_ENV"];

/// The snapshots of one session, which no other session sees.
#[derive(Debug)]
pub struct Snapshots {
    /// The account that they are charged to.
    account: Arc<Account>,
    /// Shared by starts; held briefly. Oldest first.
    entries: Mutex<Vec<Remembered>>,
}

/// A snapshot that later starts can use.
#[derive(Debug)]
struct Remembered {
    key: Key,
    captured: Arc<Captured>,
    #[expect(dead_code, reason = "releases a resource when dropped")]
    charge: Charge,
}

/// `None` if the capture has failed, which is final.
type Captured = OnceCell<Option<Snapshot>>;

/// The inputs that determine a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    scope: String,
    shell: Shell,
    cwd: HostPath,
    policy: Option<EnvPolicy>,
    sandbox: Sandbox,
    floor: Floor,
}

impl Key {
    /// Returns about how many bytes it needs.
    fn weight(&self) -> usize {
        /// How much longer the values are than their JSON, at most.
        const FACTOR: usize = 8;

        let mut len = Count(0);
        // A value that cannot be encoded is not remembered.
        serde_json::to_writer(&mut len, &(&self.policy, &self.sandbox))
            .map_or(usize::MAX / 2, |()| FACTOR * len.0)
    }
}

/// A writer that only counts bytes.
struct Count(usize);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The state that the files of a shell have set up.
#[derive(Debug, Default)]
struct Snapshot {
    /// Variables that they have set.
    set: BTreeMap<OsString, OsString>,
    /// Variables that they have removed.
    unset: BTreeSet<OsString>,
    /// Restores functions, aliases and options.
    script: Vec<u8>,
}

/// The snapshot that a start uses.
#[derive(Debug)]
pub struct SnapshotUse {
    key: Key,
    captured: Arc<Captured>,
    /// Variables in the request, which take precedence.
    explicit: BTreeSet<OsString>,
    /// The tag of the capture, which no process has; `None` after the capture.
    tag: Option<Tag>,
    time_limit: Duration,
}

impl Snapshots {
    /// Charges the snapshots to an account.
    pub fn new(account: &Arc<Account>) -> Self {
        Snapshots { account: Arc::clone(account), entries: Mutex::default() }
    }

    /// Returns the snapshot that a start uses, if it asks for one and runs a command in a login shell.
    pub fn for_start(
        &self,
        request: &wire::Start,
        floor: Floor,
        time_limit: Duration,
        tag: impl FnOnce() -> Tag,
    ) -> Result<Option<SnapshotUse>, RpcError> {
        let Some(wanted) = &request.shell_snapshot else { return Ok(None) };
        if !(1..=MAX_SCOPE).contains(&wanted.scope_id.len()) {
            let message = "shell snapshot scope must be non-empty and at most 256 bytes";
            return Err(RpcError::new(ErrorKind::InvalidParams, message));
        }
        let mut words = request.words();
        let applies = words.next() == Some(wanted.shell.path.as_bytes())
            && words.next() == Some(b"-lc")
            && words.next().is_some();
        if !applies {
            return Ok(None);
        }
        let shell = Shell::named(&wanted.shell)?;
        let key = Key {
            scope: wanted.scope_id.clone(),
            shell,
            cwd: request.cwd.clone(),
            policy: request.env_policy.clone(),
            sandbox: request.sandbox.clone(),
            floor,
        };
        let explicit = request.env.keys().map(OsString::from).collect();
        let captured = self.entry(&key);
        let tag = (!captured.initialized()).then(tag);
        Ok(Some(SnapshotUse { key, captured, explicit, tag, time_limit }))
    }

    fn entry(&self, key: &Key) -> Arc<Captured> {
        let mut entries = lock(&self.entries);
        if let Some(known) = entries.iter().find(|known| known.key == *key) {
            return Arc::clone(&known.captured);
        }
        if entries.len() == MAX_SNAPSHOTS {
            entries.remove(0);
        }
        let captured = Arc::new(OnceCell::new());
        // Without room for it, the next start captures another one.
        if let Some(charge) = self.account.try_take(Kind::Sessions, MAX_LEN + key.weight()) {
            entries.push(Remembered { key: key.clone(), captured: Arc::clone(&captured), charge });
        }
        captured
    }
}

impl SnapshotUse {
    /// Returns the start that restores the snapshot, or the unchanged one if there is none.
    ///
    /// Waits for the capture. Cancel-safe: a capture that is dropped is killed, and the next start repeats it.
    pub(super) async fn apply(&self, start: Start, spawner: &Spawner) -> Start {
        let capture = || async {
            let captured = tokio::time::timeout(self.time_limit, self.capture(&start, spawner));
            let snapshot = captured.await.ok().flatten();
            if snapshot.is_none() {
                tracing::info!(
                    target: LOG_TARGET,
                    shell = self.key.shell.path(),
                    "shell snapshot failed; commands run without it"
                );
            }
            snapshot
        };
        match self.captured.get_or_init(capture).await {
            Some(snapshot) => self.restored(start, snapshot),
            None => start,
        }
    }

    async fn capture(&self, start: &Start, spawner: &Spawner) -> Option<Snapshot> {
        let capture = Capture { shell: &self.key.shell, tag: self.tag?, spawner };
        match self.attempt(&capture, start, Files::Interactive).await {
            Err(Failed::Interactive) => {
                let shell = self.key.shell.path();
                tracing::info!(target: LOG_TARGET, shell, "shell snapshot has only what the login files set up");
                self.attempt(&capture, start, Files::Login).await.ok()
            }
            captured => captured.ok(),
        }
    }

    async fn attempt(&self, capture: &Capture<'_>, start: &Start, files: Files) -> Result<Snapshot, Failed> {
        let Found { variables, script, has_read, mut left } = capture.run(start, files).await?;
        let snapshot = self.filtered(start, variables, script);
        // A script that does not work could end the shell before the command.
        let trial = |args, snapshot| self.restored(Start { args, ..start.clone() }, snapshot);
        if let Some(snapshot) = snapshot
            && capture.check(|args| trial(args, &snapshot)).await
        {
            left.keep();
            return Ok(snapshot);
        }
        left.kill().await;
        Err(Failed::after(has_read))
    }

    /// Keeps what the policy lets through and what differs from the environment of the capture.
    fn filtered(
        &self,
        start: &Start,
        variables: BTreeMap<OsString, OsString>,
        script: Vec<u8>,
    ) -> Option<Snapshot> {
        let before: BTreeMap<&OsStr, &OsStr> =
            start.env.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str())).collect();
        let policy = self.key.policy.as_ref();
        let unset = before.keys().filter(|name| !variables.contains_key(**name) && !is_own(name));
        let unset = unset.map(|name| (*name).to_owned()).collect();
        let set: BTreeMap<_, _> = variables
            .into_iter()
            .filter(|(name, value)| before.get(name.as_os_str()) != Some(&value.as_os_str()))
            .filter(|(name, _)| is_name(name) && !is_own(name) && environment::passes(policy, name))
            .collect();
        let set_len: usize = set.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        (set_len + script.len() <= MAX_LEN).then_some(Snapshot { set, unset, script })
    }

    fn restored(&self, mut start: Start, snapshot: &Snapshot) -> Start {
        let is_explicit = |name: &OsString| self.explicit.contains(name);
        let mut env: BTreeMap<_, _> = std::mem::take(&mut start.env).into_iter().collect();
        env.retain(|name, _| is_explicit(name) || !snapshot.unset.contains(name));
        let set = snapshot.set.iter().filter(|(name, _)| !is_explicit(name));
        env.extend(set.map(|(name, value)| (name.clone(), value.clone())));
        let mut script = snapshot.script.clone();
        // A login shell does not run this file, the shell that restores would.
        if let Some(file) = env.remove(OsStr::new("BASH_ENV")) {
            script.extend(b"export BASH_ENV=");
            script.extend(quoted(file.as_bytes()));
            script.push(b'\n');
        }
        let mut unset = OsString::new();
        let mut expanded = String::new();
        for (number, part) in parts(&script).enumerate() {
            let name = format!("{PART}{number}");
            unset.push(" ");
            unset.push(&name);
            expanded.push_str(&format!("${{{name}}}"));
            env.insert(name.into(), OsString::from_vec(part.to_vec()));
        }
        if let [flag, command, ..] = start.args.as_mut_slice() {
            *flag = self.key.shell.flag().into();
            if !expanded.is_empty() {
                let mut restoring = OsString::from("eval \"unset");
                restoring.push(unset);
                restoring.push("\n");
                restoring.push(expanded);
                restoring.push("\" >/dev/null\n");
                if self.key.shell.parses_ahead() {
                    restoring.push("builtin eval ");
                    restoring.push(OsString::from_vec(quoted(command.as_bytes())));
                } else {
                    restoring.push(&*command);
                }
                *command = restoring;
            }
        }
        start.env = env.into_iter().collect();
        start
    }
}

/// Splits a script where no character is torn apart.
fn parts(mut script: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let mut end = script.len().min(PART_LEN);
        while end < script.len() && end > PART_LEN / 2 && script[end - 1] != b'\n' {
            end -= 1;
        }
        let (part, rest) = script.split_at(end);
        script = rest;
        (!part.is_empty()).then_some(part)
    })
}

/// Returns a word that every shell takes as these bytes.
fn quoted(bytes: &[u8]) -> Vec<u8> {
    let mut word = vec![b'\''];
    for byte in bytes {
        match byte {
            b'\'' => word.extend(b"'\\''"),
            byte => word.push(*byte),
        }
    }
    word.push(b'\'');
    word
}

/// Returns whether a shell can have a variable of this name; exported functions have others.
fn is_name(name: &OsStr) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    let bytes = name.as_bytes();
    bytes.first().is_some_and(is_letter) && bytes.iter().all(|byte| is_letter(byte) || byte.is_ascii_digit())
}

fn is_own(name: &OsStr) -> bool {
    OWN.iter().any(|own| name == *own) || name.as_bytes().starts_with(PART.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_split_at_the_ends_of_lines_and_nothing_is_lost() {
        let line = "é".repeat(1000) + "\n";
        let script = line.repeat(200).into_bytes();
        let parts: Vec<_> = parts(&script).collect();
        assert!(parts.len() > 1);
        assert!(parts.iter().all(|part| part.len() <= PART_LEN && part.ends_with(b"\n")));
        assert_eq!(parts.concat(), script);
        assert_eq!(super::parts(b"").count(), 0);
        let long = vec![b'x'; 3 * PART_LEN];
        assert_eq!(super::parts(&long).collect::<Vec<_>>().concat(), long);
    }

    #[test]
    fn a_quoted_word_is_one_word() {
        assert_eq!(quoted(b"a'b\n$c"), b"'a'\\''b\n$c'");
    }

    #[test]
    fn exported_functions_are_no_variables() {
        for (name, is) in [("A_1", true), ("_", true), ("1A", false), ("BASH_FUNC_f%%", false), ("", false)] {
            assert_eq!(is_name(OsStr::new(name)), is, "{name}");
        }
    }
}
