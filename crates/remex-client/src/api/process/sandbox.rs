//! What a confined process may do.

use std::{ffi::OsString, path::Path};

use remex_proto::{
    HostPath,
    sandbox::{
        Access, Context, Entry, EntryPath, FileSystem, Hosts, Network, Permissions, Preset, Sandbox as Wire,
        Special,
    },
};

use crate::{
    Client, Error,
    api::fs::{AsHostPath, path::absolute},
    base::error::usage,
};

/// What a process may read, write and reach, for [`Command::sandbox`](super::Command::sandbox).
///
/// The deepest entry decides: what is denied inside a writable directory stays denied. Paths are paths of the remote
/// host, absolute or `file:` URIs. The server enforces all of it or refuses the start with
/// [`ErrorKind::SandboxUnavailable`](crate::ErrorKind::SandboxUnavailable).
///
/// ```
/// use remex_client::process::Sandbox;
///
/// let sandbox = Sandbox::workspace_write().deny("/etc/ssh").deny_pattern("**/.env").network(true);
/// assert_ne!(sandbox, Sandbox::workspace_write());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    base: Base,
    entries: Vec<(SandboxPath, Access)>,
    roots: Vec<OsString>,
    network: Network,
    hosts: Vec<String>,
}

/// What is allowed apart from the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    Preset(Preset),
    /// What any program needs to run.
    Minimal,
    /// All files.
    Open,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SandboxPath {
    Path(OsString),
    Pattern(String),
}

impl Sandbox {
    /// Everything can be read, nothing written; no network.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, Error, ErrorKind, process::Sandbox};
    ///
    /// match Command::shell("echo x > /tmp/x").sandbox(Sandbox::read_only()).output(&client).await {
    ///     Ok(output) => assert!(!output.exit.success()),
    ///     // A host that cannot confine processes starts nothing.
    ///     Err(error) => assert_eq!(error.kind(), Some(ErrorKind::SandboxUnavailable)),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn read_only() -> Self {
        Self::new(Base::Preset(Preset::ReadOnly), Network::Restricted)
    }

    /// Everything can be read, the workspace written; no network.
    ///
    /// The workspace is the working directory of the command, unless [`Sandbox::workspace`] names others. Its `.git`,
    /// `.codex`, `.agents` and `.aws` stay read-only.
    ///
    /// ```
    /// use remex_client::process::Sandbox;
    ///
    /// let sandbox = Sandbox::workspace_write().workspace("/srv/project");
    /// assert_ne!(sandbox, Sandbox::read_only());
    /// ```
    pub fn workspace_write() -> Self {
        Self::new(Base::Preset(Preset::WorkspaceWrite), Network::Restricted)
    }

    /// Nothing can be read but the system directories that any program needs, and what is added; no network.
    ///
    /// ```
    /// use remex_client::process::Sandbox;
    ///
    /// let sandbox = Sandbox::minimal().read("/srv/input").write("/srv/output");
    /// assert_ne!(sandbox, Sandbox::minimal());
    /// ```
    pub fn minimal() -> Self {
        Self::new(Base::Minimal, Network::Restricted)
    }

    /// All files, but no network.
    ///
    /// ```
    /// use remex_client::process::Sandbox;
    ///
    /// assert_ne!(Sandbox::no_network(), Sandbox::minimal());
    /// ```
    pub fn no_network() -> Self {
        Self::new(Base::Open, Network::Restricted)
    }

    fn new(base: Base, network: Network) -> Self {
        Self { base, entries: Vec::new(), roots: Vec::new(), network, hosts: Vec::new() }
    }

    /// Adds a directory of the workspace; without any, it is the working directory.
    ///
    /// See [`Sandbox::workspace_write`] for an example.
    pub fn workspace(mut self, path: impl Into<OsString>) -> Self {
        self.roots.push(path.into());
        self
    }

    /// Allows to read a path and what is below it, and not to write it.
    ///
    /// See [`Sandbox::minimal`] for an example.
    pub fn read(self, path: impl Into<OsString>) -> Self {
        self.with(SandboxPath::Path(path.into()), Access::Read)
    }

    /// Allows to read and write a path and what is below it.
    ///
    /// `.git`, `.codex`, `.agents` and `.aws` in it stay read-only, unless they are given themselves.
    ///
    /// See [`Sandbox::minimal`] for an example.
    pub fn write(self, path: impl Into<OsString>) -> Self {
        self.with(SandboxPath::Path(path.into()), Access::Write)
    }

    /// Denies a path and what is below it.
    ///
    /// See [`Sandbox`] for an example.
    pub fn deny(self, path: impl Into<OsString>) -> Self {
        self.with(SandboxPath::Path(path.into()), Access::Deny)
    }

    /// Denies what matches a pattern with `*`, `?`, `[…]` and `**`; a relative one begins at the workspace.
    ///
    /// See [`Sandbox`] for an example.
    pub fn deny_pattern(self, pattern: impl Into<String>) -> Self {
        self.with(SandboxPath::Pattern(pattern.into()), Access::Deny)
    }

    /// Allows or denies the network.
    ///
    /// See [`Sandbox`] for an example.
    pub fn network(mut self, is_allowed: bool) -> Self {
        self.network = if is_allowed { Network::Enabled } else { Network::Restricted };
        self
    }

    /// Allows to reach a host through the server's proxy, and no other part of the network, whatever
    /// [`Sandbox::network`] says.
    ///
    /// `HOST` or `HOST:PORT`, where `HOST` is a name, `*.DOMAIN` for everything below a domain, `**.DOMAIN` for the domain
    /// too, `*` for all hosts with a public address, or an address. Only an exact name or address leads to private
    /// networks. The server looks up names; programs must use the proxy in `HTTP_PROXY`, `HTTPS_PROXY` or `ALL_PROXY`,
    /// which also speaks SOCKS5. [`Exit::network_denied`](super::Exit::network_denied) lists what was refused.
    ///
    /// ```
    /// use remex_client::process::Sandbox;
    ///
    /// let sandbox = Sandbox::workspace_write().allow_host("git.example.com").allow_host("*.example.org:443");
    /// assert_ne!(sandbox, Sandbox::workspace_write());
    /// ```
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    fn with(mut self, path: SandboxPath, access: Access) -> Self {
        self.entries.push((path, access));
        self
    }

    /// Returns what the server is asked for, for a command in this directory.
    pub(crate) fn to_wire(&self, cwd: &HostPath) -> Result<Wire, Error> {
        let mut entries = match self.base {
            Base::Preset(preset) => preset.entries(),
            Base::Minimal => vec![special(Special::Minimal, Access::Read)],
            Base::Open => vec![special(Special::Root, Access::Write)],
        };
        for (path, access) in &self.entries {
            let path = match path {
                SandboxPath::Path(path) => EntryPath::Path { path: host_path(path)? },
                SandboxPath::Pattern(pattern) => EntryPath::GlobPattern { pattern: pattern.clone() },
            };
            entries.push(Entry { path, access: *access, missing_path_behavior: None });
        }
        let file_system = match self.base {
            Base::Open if self.entries.is_empty() => FileSystem::Unrestricted,
            _ => FileSystem::Restricted { entries },
        };
        let hosts = (!self.hosts.is_empty()).then(|| Hosts { allow: self.hosts.clone(), deny: Vec::new() });
        // A server that does not know hosts grants no network then.
        let network = if hosts.is_some() { Network::Restricted } else { self.network };
        let roots = self.roots.iter().map(host_path).collect::<Result<Vec<_>, _>>()?;
        Ok(Wire::Confined(Box::new(Context {
            permissions: Permissions::Managed { file_system, network },
            windows_sandbox_level: "disabled".to_owned(),
            cwd: Some(cwd.clone()),
            workspace_roots: Some(if roots.is_empty() { vec![cwd.clone()] } else { roots }),
            policy_context: None,
            user_home_dir: None,
            temporary_directories: None,
            use_legacy_landlock: None,
            hosts,
            refuse_missing_writes: Some(true),
        })))
    }
}

fn special(value: Special, access: Access) -> Entry {
    Entry { path: EntryPath::Special { value }, access, missing_path_behavior: None }
}

/// Returns a path of the remote host.
pub(super) fn host_path(path: &OsString) -> Result<HostPath, Error> {
    match path.to_str() {
        Some(text) => HostPath::parse(text).map_err(|error| {
            usage(format!("cannot use the path `{text}`: {error}"), "give an absolute path")
        }),
        None => absolute(Path::new(path).as_host_path()?),
    }
}

impl Client {
    /// Confines all file requests of this client and its clones from now on, as if they came from a command in `directory`
    /// with this sandbox; the first sandbox stays.
    ///
    /// The server enforces it. Give commands the same with [`Command::sandbox`](crate::Command::sandbox).
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for a path in it that is not absolute.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let directory = tempfile::tempdir()?;
    /// use remex_client::process::Sandbox;
    ///
    /// client.confine_files(&Sandbox::read_only(), directory.path())?;
    /// assert!(client.fs().write(directory.path().join("note"), "no").await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn confine_files(&self, sandbox: &Sandbox, directory: impl AsHostPath) -> Result<(), Error> {
        self.core().confine_files(sandbox.to_wire(&absolute(directory.as_host_path()?)?)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(sandbox: &Sandbox) -> Vec<String> {
        let cwd = HostPath::parse("/w").unwrap();
        let Wire::Confined(context) = sandbox.to_wire(&cwd).unwrap() else { panic!("confined") };
        assert_eq!(context.cwd, Some(cwd));
        let Permissions::Managed { file_system, .. } = &context.permissions else { panic!("managed") };
        match file_system {
            FileSystem::Unrestricted => vec!["unrestricted".to_owned()],
            FileSystem::Restricted { entries } => {
                entries.iter().map(|entry| serde_json::to_string(entry).unwrap()).collect()
            }
        }
    }

    #[test]
    fn additions_follow_the_base_profile() {
        let sandbox = Sandbox::minimal().read("/in").write("/out").deny("/out/keys").deny_pattern("**/.env");
        assert_eq!(
            entries(&sandbox),
            [
                r#"{"path":{"type":"special","value":{"kind":"minimal"}},"access":"read"}"#,
                r#"{"path":{"type":"path","path":"file:///in"},"access":"read"}"#,
                r#"{"path":{"type":"path","path":"file:///out"},"access":"write"}"#,
                r#"{"path":{"type":"path","path":"file:///out/keys"},"access":"deny"}"#,
                r#"{"path":{"type":"glob_pattern","pattern":"**/.env"},"access":"deny"}"#,
            ]
        );
        assert_eq!(entries(&Sandbox::no_network()), ["unrestricted"]);
        assert_eq!(entries(&Sandbox::no_network().deny("/etc"))[0].matches("root").count(), 1);
    }

    #[test]
    fn with_hosts_there_is_no_other_network() {
        let cwd = HostPath::parse("/w").unwrap();
        let sandbox = Sandbox::read_only().network(true).allow_host("a.org").allow_host("*.b.org:443");
        let Wire::Confined(context) = sandbox.to_wire(&cwd).unwrap() else { panic!("confined") };
        assert!(
            matches!(context.permissions, Permissions::Managed { network: Network::Restricted, .. }),
            "{context:?}"
        );
        assert_eq!(context.hosts.unwrap().allow, ["a.org", "*.b.org:443"]);
    }

    #[test]
    fn a_relative_path_is_an_error() {
        let cwd = HostPath::parse("/w").unwrap();
        let error = Sandbox::read_only().deny("etc").to_wire(&cwd).unwrap_err();
        assert_eq!(error.hint(), Some("give an absolute path"), "{error}");
    }
}
