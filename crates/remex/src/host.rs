//! What clients may know about this host, read from where the system keeps it.

use std::path::PathBuf;

use anyhow::Context;
use remex_proto::{HostPath, environment};
use remex_server::Host;

/// Looks around.
pub(crate) fn look() -> anyhow::Result<Host> {
    let cwd = std::env::current_dir().context("cannot find out the working directory")?;
    let info = environment::Info {
        shell: environment::Shell { name: "sh".to_owned(), path: "/bin/sh".to_owned() },
        executor_version: env!("CARGO_PKG_VERSION").to_owned(),
        provider_id: String::new(),
        cwd: Some(HostPath::from(cwd)),
        user_home_dir: None,
        platform_os: std::env::consts::OS.to_owned(),
        prepend_path_dirs: Vec::new(),
        temporary_directories: Vec::new(),
        temp_dir: Some(HostPath::from(std::env::temp_dir())),
        capabilities: environment::Features::default(),
    };
    let codex_system_dir = PathBuf::from("/etc/codex");
    Ok(Host { info, hostname: String::new(), codex_home: None, codex_system_dir })
}
