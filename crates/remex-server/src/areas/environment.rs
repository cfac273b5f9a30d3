//! `environment/configRead`: the parts of the host's Codex configuration that the client asks for.
//!
//! Layers from lowest to highest precedence: the administrators' file, the user's, those of the project if the
//! user trusts it, and the administrators' managed overrides. The files are read again on each request. Start
//! at [`Layers`].

mod info;

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use remex_files::file_slot;
use remex_proto::{ErrorKind, HostPath, RequestId, RpcError, environment as wire, sandbox::Sandbox};
use rustix::fs::OFlags;
use toml::{Table, Value};

use crate::{
    areas::{context::CallContext, fs::FileCalls},
    config::HostInfo,
    outbox::Responder,
};

pub(crate) use info::describe;

/// The longest configuration file that is read, in bytes.
const MAX_FILE_LEN: u64 = 1 << 20;

/// The file name in the directories of the user, the administrators and a project.
const CONFIG: &str = "config.toml";

/// Answers `environment/configRead`, within the slots for file work.
pub(crate) fn read_config(
    context: &mut CallContext,
    files: &FileCalls,
    id: RequestId,
    request: wire::ReadConfig,
    responder: Responder,
) {
    let checked = files.guard().check_unlimited("environmentConfig/read").and_then(|()| check(&request));
    if let Err(error) = checked {
        return responder.error(&error);
    }
    let (host, slots) = (Arc::clone(context.host()), Arc::clone(files.slots()));
    let threads = context.threads().clone();
    let guard = files.guard().clone();
    context.spawn_call(id, async move {
        let slot = file_slot(slots).await;
        let reading = threads.run(move || {
            let guard = guard.confined(host.confinement(), &Sandbox::Disabled);
            let reply = guard
                .and_then(|guard| guard.check_readable("environmentConfig/read"))
                .and_then(|()| read(host.info(), &request));
            drop(slot);
            reply
        });
        responder.answer(reading.await.and_then(|reply| reply));
    });
}

fn check(request: &wire::ReadConfig) -> Result<(), RpcError> {
    let mut paths = request.config_paths.iter().chain(&request.requirements_paths).peekable();
    if paths.peek().is_none() {
        return Err(invalid("at least one config or requirements path is required"));
    }
    if paths.any(Vec::is_empty) {
        return Err(invalid("TOML paths must contain at least one key segment"));
    }
    request.cwd.native().map(drop).map_err(|error| invalid(error.to_string()))
}

fn invalid(message: impl Into<String>) -> RpcError {
    RpcError::new(ErrorKind::InvalidParams, message)
}

fn read(host: &HostInfo, request: &wire::ReadConfig) -> Result<wire::ConfigReply, RpcError> {
    let cwd = request.cwd.native().map_err(|error| invalid(error.to_string()))?;
    let home = codex_home(host)?;
    let mut config = Layers::new(&request.config_paths);
    let file = host.codex_system_dir.join(CONFIG);
    if let Some(table) = table(&file)? {
        config.push(format!("system ({})", file.display()), &file, &table)?;
    }
    let cloud_insertion_index = config.layers.len() as u64;
    if let Some(home) = &home {
        let file = home.join(CONFIG);
        if let Some(user) = table(&file)? {
            config.push(format!("user ({})", file.display()), &file, &user)?;
            for file in project_files(&user, cwd, home) {
                if let Some(table) = table(&file)? {
                    config.push(format!("project ({})", file.display()), &file, &table)?;
                }
            }
        }
    }
    let file = host.codex_system_dir.join("managed_config.toml");
    if let Some(table) = table(&file)? {
        config.push(format!("legacy managed_config.toml ({})", file.display()), &file, &table)?;
    }
    let mut requirements = Layers::new(&request.requirements_paths);
    let file = host.codex_system_dir.join("requirements.toml");
    if let Some(table) = table(&file)? {
        requirements.push(file.display().to_string(), &file, &table)?;
    }
    Ok(wire::ConfigReply {
        user_home_dir: host.info.user_home_dir.clone(),
        codex_home_dir: home.map(HostPath::from),
        hostname: Some(host.hostname.clone()),
        config: wire::ConfigLayers { layers: config.layers, cloud_insertion_index },
        requirements: wire::ConfigLayers {
            cloud_insertion_index: requirements.layers.len() as u64,
            layers: requirements.layers,
        },
    })
}

/// Returns the user's configuration directory; one that was set explicitly must exist.
fn codex_home(host: &HostInfo) -> Result<Option<PathBuf>, RpcError> {
    let Some(named) = &host.codex_home else {
        let home = host.info.user_home_dir.as_ref().and_then(|home| home.native().ok());
        return Ok(home.map(|home| home.join(".codex")));
    };
    let why = match named.metadata() {
        Ok(metadata) if metadata.is_dir() => return Ok(Some(named.clone())),
        Ok(_) => "that path is not a directory".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => "that path does not exist".to_owned(),
        Err(error) => error.to_string(),
    };
    let message = format!("failed to find Codex home: CODEX_HOME points to {named:?}, but {why}");
    let hint = "create that directory on the host, or start the server with another CODEX_HOME or without";
    Err(RpcError::new(ErrorKind::Io, message).with_hint(hint))
}

/// The selected keys of several files.
struct Layers<'a> {
    /// Each as the segments of its path.
    keys: Vec<&'a [String]>,
    layers: Vec<wire::ConfigLayer>,
}

impl<'a> Layers<'a> {
    fn new(keys: &'a [Vec<String>]) -> Self {
        Layers { keys: keys.iter().map(Vec::as_slice).collect(), layers: Vec::new() }
    }

    /// Adds the selected keys of a file, if it has any.
    fn push(&mut self, source: String, file: &Path, table: &Table) -> Result<(), RpcError> {
        let selected = select(table, &self.keys);
        if !selected.is_empty() {
            let toml = toml::to_string(&selected).map_err(|error| unreadable(file, &error.to_string()))?;
            let base_dir = HostPath::from(file.parent().unwrap_or(file).to_owned());
            self.layers.push(wire::ConfigLayer { source, base_dir, toml });
        }
        Ok(())
    }
}

/// Returns what the keys select, in file order; a key below a plain value selects that value.
fn select(table: &Table, keys: &[&[String]]) -> Table {
    let mut selected = Table::new();
    for (name, value) in table {
        let below: Vec<&[String]> = keys
            .iter()
            .filter_map(|key| key.split_first().filter(|(first, _)| *first == name).map(|(_, rest)| rest))
            .collect();
        let part = match value {
            Value::Table(inner) if below.iter().all(|rest| !rest.is_empty()) => {
                let inner = select(inner, &below);
                (!inner.is_empty()).then_some(Value::Table(inner))
            }
            _ => (!below.is_empty()).then(|| value.clone()),
        };
        selected.extend(part.map(|part| (name.clone(), part)));
    }
    selected
}

/// Returns the files of the project around `cwd` that the user trusts, outermost first.
fn project_files(user: &Table, cwd: &Path, home: &Path) -> Vec<PathBuf> {
    let root = cwd.ancestors().find(|directory| is_project_root(directory, user)).unwrap_or(cwd);
    let trust = |directory: &Path| {
        let project = user.get("projects")?.get(directory.to_str()?)?;
        Some(project.get("trust_level")?.as_str()? == "trusted")
    };
    let mut directories: Vec<_> =
        cwd.ancestors().take_while(|directory| directory.starts_with(root)).collect();
    directories.reverse();
    directories
        .into_iter()
        .filter(|directory| trust(directory).or_else(|| trust(root)).unwrap_or(false))
        .map(|directory| directory.join(".codex"))
        .filter(|directory| directory != home)
        .map(|directory| directory.join(CONFIG))
        .collect()
}

fn is_project_root(directory: &Path, user: &Table) -> bool {
    let git = directory.join(".git");
    // In a linked work tree, `.git` is a file.
    let is_git = git.is_file() || git.join("HEAD").exists();
    let markers = user.get("project_root_markers").and_then(Value::as_array);
    let mut names = markers.into_iter().flatten().filter_map(Value::as_str).filter(|name| *name != ".git");
    is_git || names.any(|name| directory.join(name).exists())
}

/// Reads a file; returns `None` if it does not exist.
fn table(path: &Path) -> Result<Option<Table>, RpcError> {
    let failed =
        |why: String| unreadable(path, &format!("Failed to read config file {}: {why}", path.display()));
    let text = match open(path).and_then(|file| file.map(text).transpose()) {
        Ok(Some(text)) => text,
        Ok(None) => return Err(failed(format!("path `{}` is not a file", path.display()))),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(error.to_string())),
    };
    match text.parse() {
        Ok(table) => Ok(Some(table)),
        Err(error) => {
            let (line, column) = position(&text, &error);
            Err(unreadable(path, &format!("{}:{line}:{column}: {}", path.display(), error.message())))
        }
    }
}

/// Opens a regular file; returns `None` for anything else, which could block a reader.
fn open(path: &Path) -> io::Result<Option<File>> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}

fn text(file: File) -> io::Result<String> {
    let mut text = String::new();
    let len = file.take(MAX_FILE_LEN + 1).read_to_string(&mut text)?;
    if len as u64 > MAX_FILE_LEN {
        return Err(io::Error::other(format!("it is longer than {MAX_FILE_LEN} bytes")));
    }
    Ok(text)
}

/// Returns line and column of an error, both starting at 1.
fn position(text: &str, error: &toml::de::Error) -> (usize, usize) {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

fn unreadable(path: &Path, why: &str) -> RpcError {
    RpcError::new(ErrorKind::Io, format!("failed to load executor-local config: {why}"))
        .with_hint(format!("correct `{}` on the host, or move it away", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(keys: &[&[&str]]) -> String {
        let text = "# a comment\nmodel = 'm'\nzeta = 1 # b\nwhen = 2024-01-02\n[mcp_servers]\na = {command = 'x', args = ['1','2']}\n\
                    [mcp_servers.b]\nurl = 'u'\n[[list]]\nq = 1\n";
        let keys: Vec<Vec<String>> =
            keys.iter().map(|key| key.iter().map(|part| (*part).to_owned()).collect()).collect();
        let keys: Vec<&[String]> = keys.iter().map(Vec::as_slice).collect();
        toml::to_string(&select(&text.parse().unwrap(), &keys)).unwrap()
    }

    #[test]
    fn keys_are_selected_in_the_order_of_the_file() {
        let both = "model = \"m\"\n\n[mcp_servers.a]\ncommand = \"x\"\n";
        assert_eq!(selected(&[&["mcp_servers", "a", "command"], &["model"]]), both);
        let servers =
            "[mcp_servers.a]\ncommand = \"x\"\nargs = [\"1\", \"2\"]\n\n[mcp_servers.b]\nurl = \"u\"\n";
        assert_eq!(selected(&[&["mcp_servers"]]), servers);
        assert_eq!(selected(&[&["mcp_servers", "b"], &["mcp_servers"], &["mcp_servers"]]), servers);
        assert_eq!(selected(&[&["when"], &["zeta"]]), "zeta = 1\nwhen = 2024-01-02\n");
    }

    #[test]
    fn a_key_below_a_plain_value_selects_that_value() {
        assert_eq!(selected(&[&["model", "x"]]), "model = \"m\"\n");
        assert_eq!(selected(&[&["list", "q"]]), "[[list]]\nq = 1\n");
    }

    #[test]
    fn missing_keys_select_nothing() {
        assert_eq!(selected(&[&["nothing"], &["mcp_servers", "c"], &["mcp_servers", "a", "b", "c"]]), "");
    }

    #[test]
    fn administrators_define_the_lowest_and_the_highest_layer() {
        let directory = tempfile::tempdir().unwrap();
        let (system, home) = (directory.path().join("etc"), directory.path().join("home"));
        for place in [&system, &home] {
            std::fs::create_dir(place).unwrap();
        }
        for file in [
            system.join("config.toml"),
            home.join("config.toml"),
            system.join("managed_config.toml"),
            home.join("managed_config.toml"),
            system.join("requirements.toml"),
            home.join("requirements.toml"),
        ] {
            std::fs::write(&file, "a = 1\n").unwrap();
        }
        let host = HostInfo {
            info: wire::Info::new(wire::Shell::new("sh", "/bin/sh")),
            hostname: "h".into(),
            codex_home: Some(home.clone()),
            codex_system_dir: system.clone(),
        };
        let keys = vec![vec!["a".to_owned()]];
        let cwd = HostPath::parse("/").unwrap();
        let request = wire::ReadConfig { cwd, config_paths: keys.clone(), requirements_paths: keys };
        let layer = |source: String, base: &Path| wire::ConfigLayer {
            source,
            base_dir: HostPath::from(base.to_owned()),
            toml: "a = 1\n".into(),
        };
        let (etc, user) = (system.display(), home.display());
        assert_eq!(
            read(&host, &request).unwrap(),
            wire::ConfigReply {
                user_home_dir: None,
                codex_home_dir: Some(HostPath::from(home.clone())),
                hostname: Some("h".into()),
                config: wire::ConfigLayers {
                    layers: vec![
                        layer(format!("system ({etc}/config.toml)"), &system),
                        layer(format!("user ({user}/config.toml)"), &home),
                        layer(format!("legacy managed_config.toml ({etc}/managed_config.toml)"), &system),
                    ],
                    cloud_insertion_index: 1,
                },
                requirements: wire::ConfigLayers {
                    layers: vec![layer(format!("{etc}/requirements.toml"), &system)],
                    cloud_insertion_index: 1,
                },
            }
        );
    }
}
