//! Forwarding of the ssh agent.
//!
//! `ssh -A` makes a socket on the host for each login, with a name that is new each time, and removes it with the login.
//! `remex proxy`, which runs in that login, keeps a link to it whose name stays: what runs there finds the agent again after a
//! reconnect, and finds nothing while its user is away. `remex attach -A` has a link of its own, to which it points that of
//! the process. Start at [`forward`], [`AgentLink`] and [`LentAgent`].

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder},
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, symlink},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use remex_client::{Client, ConnectionState, Error, Program, Target};

use crate::render::{
    failure::{Failure, InvalidArg},
    print,
};

/// Where the links are, below the home directory of the host.
const DIRECTORY: &str = ".local/state/remex/agents";

/// The label of a process that looks for an agent; its value is the name of the link.
pub(crate) const LABEL: &str = "remex.agent";

/// How long a link to a link stays without an agent: its user may reconnect.
const ALIAS_TIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// How long giving an agent back may take.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The variable that leads to an agent.
const VARIABLE: &str = "SSH_AUTH_SOCK";

/// Lets the logins of an ssh program forward the agent, and returns the name of the link on the host.
pub(crate) fn forward(target: &mut Target) -> Result<String, Failure> {
    let refused = |why: String| {
        let what = "cannot forward your ssh agent";
        Failure::usage(what, "omit `-A`, or use an environment such as `ssh://user@host`").because(why)
    };
    let Target::Program(program) = target else {
        return Err(refused(format!("{target} does not use ssh")));
    };
    if !runs_proxy(program) {
        return Err(refused(format!("{program} is not `ssh HOST remex proxy`")));
    }
    if std::env::var_os(VARIABLE).is_none_or(|socket| socket.is_empty()) {
        let what = "cannot forward your ssh agent";
        return Err(Failure::usage(
            what,
            "start one with `eval $(ssh-agent)`, and give it your key with `ssh-add`",
        )
        .because(format!("{VARIABLE} is not set, so there is none")));
    }
    let random = RandomState::new();
    let half = |number: u8| {
        let mut hasher = random.build_hasher();
        hasher.write_u8(number);
        hasher.finish()
    };
    let name = format!("{:016x}{:016x}", half(0), half(1));
    program.args.insert(0, "-A".to_owned());
    program.args.extend(["--agent-link".to_owned(), name.clone()]);
    Ok(name)
}

/// Returns whether a program is `ssh` with `remex proxy` as its command.
fn runs_proxy(program: &Program) -> bool {
    let Some(login) = program.ssh_login() else { return false };
    match &program.args[login.args.len()..] {
        [name, proxy, ..] => (name == "remex" || name.ends_with("/remex")) && proxy == "proxy",
        _ => false,
    }
}

/// Returns the path of a link on the host.
pub(crate) fn path(name: &str) -> String {
    format!("~/{DIRECTORY}/{name}")
}

/// Checks the name of a link.
pub(crate) fn name(text: &str) -> Result<String, InvalidArg> {
    if !text.is_empty() && text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Ok(text.to_owned());
    }
    Err(InvalidArg::new("it is not the name of a link", "use letters and digits"))
}

/// A link to the agent of this login, removed when dropped.
#[derive(Debug)]
pub(crate) struct AgentLink {
    path: PathBuf,
    socket: PathBuf,
}

impl AgentLink {
    /// Links to the agent that ssh forwards to this program; `None` if it forwards none, which is reported.
    pub(crate) fn make(name: &str) -> Result<Option<Self>, Failure> {
        let Some(socket) = std::env::var_os(VARIABLE).filter(|socket| !socket.is_empty()) else {
            print::note("this host accepts no ssh agent (`AllowAgentForwarding` in its sshd_config)");
            return Ok(None);
        };
        let Some(home) = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute()) else {
            print::note("no ssh agent: you have no home directory on this host");
            return Ok(None);
        };
        let directory = home.join(DIRECTORY);
        let link = Self { path: directory.join(name), socket: socket.into() };
        link.place(&directory).map_err(|error| {
            Failure::io(&format!("link `{}` to the ssh agent", link.path.display()), &error)
        })?;
        Ok(Some(link))
    }

    fn place(&self, directory: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        // In one step, because what runs there may be about to use it.
        let new = self.path.with_extension(std::process::id().to_string());
        symlink(&self.socket, &new)?;
        fs::rename(&new, &self.path)?;
        remove_dead_links(directory);
        Ok(())
    }
}

impl Drop for AgentLink {
    fn drop(&mut self) {
        // A newer login may have replaced it.
        if fs::read_link(&self.path).is_ok_and(|socket| socket == self.socket) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes links left behind by killed programs.
fn remove_dead_links(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_dead = fs::metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        // Its target reappears with the next login.
        let is_alias = fs::read_link(&path).is_ok_and(|target| target.components().count() == 1);
        let is_new = || {
            let age = fs::symlink_metadata(&path).and_then(|link| link.modified()).map(|at| at.elapsed());
            age.is_ok_and(|age| age.is_ok_and(|age| age < ALIAS_TIME))
        };
        if is_dead && !(is_alias && is_new()) {
            let _ = fs::remove_file(path);
        }
    }
}

/// The agent of this client, lent to a process that was started with one, until it is given back.
#[derive(Debug)]
pub(crate) struct LentAgent {
    client: Client,
    /// The link that the process uses.
    path: String,
    /// The name of the link of this client.
    own: String,
    /// The previous target of the link.
    before: Option<Vec<u8>>,
}

impl LentAgent {
    /// Points the link at `path` to the one beside it with the name `own`; `None` if its host accepts no agent, which the
    /// login has reported.
    pub(crate) async fn lend(client: &Client, path: String, own: &str) -> Result<Option<Self>, Error> {
        let fs = client.fs();
        if !fs.exists(beside(&path, own)).await? {
            return Ok(None);
        }
        let before = fs.read_link(&path).await.ok().map(|before| before.target_base64.0.to_vec());
        let lent = Self { client: client.clone(), path, own: own.to_owned(), before };
        lent.point_to(own.as_bytes()).await?;
        Ok(Some(lent))
    }

    /// Gives the link back to the client that had it before, if that is still there.
    pub(crate) async fn give_back(self) {
        if self.client.connection_state() != ConnectionState::Connected {
            // It leads nowhere without this login.
            return;
        }
        let work = async {
            let there = self.client.fs().read_link(&self.path).await?;
            if there.target_base64[..] != *self.own.as_bytes() {
                // A newer client has it.
                return Ok(());
            }
            match &self.before {
                Some(before) => self.point_to(before).await,
                None => self.client.fs().remove(&self.path).await,
            }
        };
        let _ = tokio::time::timeout(END_TIMEOUT, work).await;
    }

    /// Changes the link in one step.
    async fn point_to(&self, target: &[u8]) -> Result<(), Error> {
        let (fs, new) = (self.client.fs(), beside(&self.path, &format!("{}.new", self.own)));
        fs.replace_with_symlink(OsStr::from_bytes(target), &new).await?;
        fs.rename(&new, &self.path).await
    }
}

fn beside(path: &str, name: &str) -> String {
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    format!("{directory}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(program: &str, args: &[&str]) -> Program {
        let Target::Program(program) = Target::program(program, args.iter().copied()) else {
            panic!("a program")
        };
        program
    }

    #[test]
    fn only_ssh_with_the_proxy_forwards_an_agent() {
        for (program, command, fits) in [
            ("ssh", &["far", "remex", "proxy"][..], true),
            ("/usr/bin/ssh", &["-p", "22", "me@far", ".local/bin/remex", "proxy"], true),
            ("ssh", &["far", "remex", "serve", "--listen", "stdio"], false),
            ("ssh", &["far"], false),
            ("docker", &["exec", "-i", "far", "remex", "proxy"], false),
        ] {
            assert_eq!(runs_proxy(&args(program, command)), fits, "{program} {command:?}");
        }
    }

    #[test]
    fn link_names_cannot_escape_their_directory() {
        assert!(name("0123abc").is_ok());
        for text in ["", "../x", "a/b", ".x"] {
            assert!(name(text).is_err(), "{text}");
        }
    }
}
