//! ssh hosts: `ssh://` addresses, and installing this program there.
//!
//! Start at [`target`], [`install`] and [`shares_logins`].

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    os::unix::process::ExitStatusExt as _,
    process::{Command, Output, Stdio},
};

use remex_client::{Error, Program, Target};
use rustix::process::Signal;
use sha2::{Digest as _, Sha256};

use crate::render::{
    failure::{Failure, Kind},
    text,
};

/// Where this program is installed, relative to the remote home directory, in which ssh runs commands.
pub(crate) const INSTALLED: &str = ".local/bin/remex";

/// The installation script: reads a program from standard input, and installs it if the architecture and checksum match
/// and it runs. Prints one line. Contains no single quote, and `!` only in `!=`, so that every shell parses it as one word.
const SCRIPT: &str = "\
set -e; umask 022; \
machine=$(uname -sm); if [ \"$machine\" != \"MACHINE\" ]; then echo \"remex-install machine $machine\"; exit 0; fi; \
sum() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d \" \" -f 1; }; \
if [ -x PLACE ] && [ \"$(sum < PLACE)\" = HASH ]; then echo \"remex-install present\"; exit 0; fi; \
mkdir -p DIRECTORY; new=PLACE.$$; trap \"rm -f $new\" EXIT; cat > $new; chmod 755 $new; \
if [ \"$(sum < $new)\" != HASH ]; then echo \"remex-install damaged\"; exit 0; fi; \
if version=$(./$new --version 2>&1); then mv $new PLACE; \
echo \"remex-server $(./PLACE server status --json 2>/dev/null | tr -d \"\\n\")\"; \
echo \"remex-install done $version\"; else echo \"remex-install broken $version\"; fi";

/// Parses an address; an `ssh://` address becomes an ssh program.
pub(crate) fn target(address: &str) -> Result<Target, Failure> {
    Target::parse(address).map_err(|error| match error {
        Error::Address { address: shown, .. } if !is_known(address) => {
            let hint = match with_slashes(&shown) {
                Some(corrected) => format!("write `{corrected}`"),
                None => "use `ssh://user@host` for an ssh host, or `ws://host:port`, `wss://host:port` or \
                         `unix:///path` for a server"
                    .to_owned(),
            };
            Failure::usage(format!("cannot use `{shown}` as a server"), hint).because("not a server address")
        }
        error => error.into(),
    })
}

/// Corrects an address whose scheme is not followed by `//`, such as `ws:/host`.
pub(crate) fn with_slashes(address: &str) -> Option<String> {
    let (scheme, rest) = address.split_once(':')?;
    let host = rest.trim_start_matches('/');
    match scheme {
        _ if rest.starts_with("//") || host.is_empty() => None,
        "ws" if !host.contains(':') => Some(format!("ws://{host}:PORT")),
        "ws" | "ssh" => Some(format!("{scheme}://{host}")),
        "unix" => Some(format!("unix:///{host}")),
        _ => None,
    }
}

/// Returns whether the client supports the scheme of an address.
fn is_known(address: &str) -> bool {
    ["ws://", "wss://", "ssh://", "unix:", "/"].iter().any(|beginning| address.starts_with(beginning))
}

/// Changes an ssh command line to run the program that [`install`] installed.
///
/// The remote command must be `remex` with any arguments.
pub(crate) fn use_installed(program: &mut Program) -> Result<(), Failure> {
    let Some(login) = program.ssh_login() else { return Err(no_ssh(program)) };
    let mut command = program.args[login.args.len()..].iter_mut();
    match command.next() {
        Some(name) if name == "remex" || name.ends_with("/remex") => {
            INSTALLED.clone_into(name);
            Ok(())
        }
        _ => Err(no_ssh(program)),
    }
}

/// Returns the command line that runs another command of the remex that `program` connects through, such as `ssh HOST
/// remex upgrade` for `ssh HOST remex proxy`; `None` if it is something else.
pub(crate) fn other_command(program: &Program, words: &[&str]) -> Option<Program> {
    let login = program.ssh_login()?;
    let [name, proxy] = &program.args[login.args.len()..] else { return None };
    let is_remex = name == "remex" || name.ends_with("/remex");
    let words = words.iter().map(|word| (*word).to_owned());
    (is_remex && proxy == "proxy").then(|| login.arg(name.as_str()).args(words))
}

/// Runs a command line to its end; blocks. ssh may prompt on the terminal.
pub(crate) fn run(program: &Program, stderr: Stdio) -> Result<Output, Failure> {
    Command::new(&program.program)
        .args(&program.args)
        .envs(&program.env)
        .current_dir(program.cwd.as_deref().unwrap_or(".".as_ref()))
        .stdin(Stdio::null())
        .stderr(stderr)
        .output()
        .map_err(|error| Failure::io(&format!("run {program}"), &error))
}

fn no_ssh(program: &Program) -> Failure {
    Failure::usage("cannot install remex", "copy the program to the host by other means")
        .because(format!("{program} is not `ssh HOST remex proxy`"))
}

/// What [`install`] has done.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) summary: String,
    /// The server of the user there that still runs the program from before.
    pub(crate) old_server: Option<OldServer>,
}

/// A server whose program was replaced on disk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OldServer {
    pub(crate) pid: Option<u64>,
    /// Such as `remex 0.1.0`.
    pub(crate) version: String,
}

impl OldServer {
    /// Finds the server in the output of the script.
    fn find(said: &str) -> Option<Self> {
        let status = said.lines().rev().find_map(|line| line.strip_prefix("remex-server "))?;
        let status: serde_json::Value = serde_json::from_str(status).ok()?;
        let version = || Some(text::plain(status["serverVersion"].as_str()?));
        (status["state"] == "running").then(|| Self {
            pid: status["pid"].as_u64(),
            version: version().unwrap_or_else(|| "an unknown version".to_owned()),
        })
    }
}

/// Installs this program on the host of an ssh command line, and returns a description of the outcome.
///
/// ssh may prompt on the terminal.
pub(crate) fn install(program: &Program) -> Result<Installed, Failure> {
    let Some(login) = program.ssh_login() else { return Err(no_ssh(program)) };
    let io_failure = |action: &str| {
        let action = action.to_owned();
        move |error: io::Error| Failure::io(&action, &error)
    };
    let path = std::env::current_exe().map_err(io_failure("find this program"))?;
    let read = format!("read `{}`", path.display());
    let mut file = File::open(&path).map_err(io_failure(&read))?;
    let (hash, len) = digest(&mut file).map_err(io_failure(&read))?;
    let (directory, _) = INSTALLED.rsplit_once('/').unwrap_or((".", INSTALLED));
    let script = SCRIPT
        .replace("MACHINE", &machine())
        .replace("DIRECTORY", directory)
        .replace("PLACE", INSTALLED)
        .replace("HASH", &hash);
    let output = Command::new(&login.program)
        .args(&login.args)
        .arg(format!("exec sh -c '{script}'"))
        .envs(&login.env)
        .current_dir(login.cwd.as_deref().unwrap_or(".".as_ref()))
        .stdin(Stdio::from(file))
        .stderr(Stdio::inherit())
        .output()
        .map_err(io_failure(&format!("run {login}")))?;
    if output.status.signal() == Some(Signal::INT.as_raw()) {
        return Err(Failure::signalled(128 + 2));
    }
    if !output.status.success() {
        return Err(Failure::of(
            Kind::Unreachable,
            "cannot install remex",
            format!("run {login} by hand and check its output"),
        )
        .because(format!("{login} failed ({})", output.status)));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(Installed { summary: outcome(&said, len)?, old_server: OldServer::find(&said) })
}

/// Returns whether the ssh configuration of the user shares connections.
pub(crate) fn shares_logins(login: &Program) -> bool {
    // `-G` prints the configuration for a host without connecting.
    let output = Command::new(&login.program)
        .arg("-G")
        .args(&login.args)
        .envs(&login.env)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let Ok(output) = output else { return false };
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().any(|line| line.strip_prefix("controlpath ").is_some_and(|path| path != "none"))
}

/// Interprets the output of the script, in which shell start-up files may have printed other lines.
fn outcome(said: &str, len: u64) -> Result<String, Failure> {
    let answer = said.lines().rev().find_map(|line| line.strip_prefix("remex-install ")).unwrap_or_default();
    let ours = concat!("remex ", env!("CARGO_PKG_VERSION"));
    let size = text::size(len);
    match answer.split_once(' ').unwrap_or((answer, "")) {
        ("present", _) => Ok(format!("{ours} is already installed at `{INSTALLED}`")),
        ("done", version) if version.starts_with(ours) => {
            Ok(format!("installed {ours} ({size}) at `{INSTALLED}`; its checksum matches and it runs"))
        }
        ("done", version) => Err(Failure::new(
            format!("installed `{INSTALLED}`, but its version is `{}`", text::plain(version)),
            format!("this is {ours}; try again"),
        )),
        ("machine", there) => Err(Failure::new(
            "cannot install remex",
            "build remex for that host, and copy it to a directory in its PATH",
        )
        .because(format!(
            "this program is for {}, but the host is {}",
            machine(),
            text::plain(there)
        ))),
        ("damaged", _) => {
            Err(Failure::new("the program was damaged in transit, and was removed", "try again"))
        }
        ("broken", why) => Err(Failure::new(
            "this program does not run on that host",
            "install a static build (`scripts/static`), or build remex on that host",
        )
        .because(text::plain(why))),
        _ => Err(Failure::new(
            "cannot install remex",
            "check that the host has `sh`, `uname`, `cat` and `sha256sum`",
        )
        .because("the installation script printed no result")),
    }
}

/// Returns the output of `uname -sm` on this machine.
fn machine() -> String {
    let uname = rustix::system::uname();
    format!("{} {}", uname.sysname().to_string_lossy(), uname.machine().to_string_lossy())
}

/// Returns the hash and length of a file, and rewinds it.
fn digest(file: &mut File) -> io::Result<(String, u64)> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; 64 << 10];
    let mut len = 0;
    loop {
        match file.read(&mut piece)? {
            0 => break,
            count => {
                hasher.update(&piece[..count]);
                len += count as u64;
            }
        }
    }
    file.rewind()?;
    Ok((hasher.finalize().iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}")), len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_command_of_an_ssh_line_is_changed() {
        let Target::Program(mut program) = target("ssh://remex@remex:2222").unwrap() else { unreachable!() };
        use_installed(&mut program).unwrap();
        assert_eq!(program.to_string(), "`ssh -p 2222 remex@remex .local/bin/remex proxy`");
        use_installed(&mut program).unwrap();
        assert_eq!(program.to_string(), "`ssh -p 2222 remex@remex .local/bin/remex proxy`");
        let mut other = Program::new("ssh").args(["far", "sudo", "remex"]);
        assert!(use_installed(&mut other).is_err());
        let upgrade = |program| other_command(program, &["upgrade"]).map(|command| command.to_string());
        assert_eq!(upgrade(&program).unwrap(), "`ssh -p 2222 remex@remex .local/bin/remex upgrade`");
        assert_eq!(upgrade(&other), None);
        assert_eq!(upgrade(&Program::new("ssh").args(["far", "remex", "serve", "--listen", "stdio"])), None);
    }

    #[test]
    fn the_answer_of_the_script_is_found_after_other_output() {
        let done = format!("Welcome!\nremex-install done remex {}\n", env!("CARGO_PKG_VERSION"));
        assert!(outcome(&done, 1024).unwrap().starts_with("installed remex "));
        assert!(outcome("remex-install present\n", 0).unwrap().contains("is already installed"));
        let server = "remex-server {\"state\":\"running\",\"pid\":7,\"serverVersion\":\"remex 0.0.9\"}\n";
        let old = OldServer { pid: Some(7), version: "remex 0.0.9".to_owned() };
        assert_eq!(OldServer::find(&format!("Welcome!\n{server}{done}")), Some(old));
        for none in ["remex-server {\"state\":\"stopped\"}", "remex-server ", "Welcome!"] {
            assert_eq!(OldServer::find(none), None);
        }
        let wrong = |said: &str| outcome(said, 0).unwrap_err().message();
        assert!(wrong("remex-install machine Linux riscv64").ends_with("but the host is Linux riscv64"));
        assert!(wrong("remex-install done remex 0.0.0").ends_with("but its version is `remex 0.0.0`"));
        assert!(wrong("remex-install broken no such library").ends_with("no such library"));
        assert!(wrong("remex-install damaged").contains("damaged in transit"));
        assert!(wrong("Welcome!").contains("printed no result"));
    }
}
