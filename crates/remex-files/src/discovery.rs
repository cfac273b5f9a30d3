//! Finds plugins and skills: in directories that the client names, and those that the host's user has installed.
//!
//! Everything is read through the [`PathGuard`] of the connection, and within the limits of a budget: a tree
//! may be huge, link to itself or hang. Start at [`discover_roots`].

mod installed;
mod scan;
mod skill;
mod yaml;

use std::path::{Path, PathBuf};

use remex_proto::{ErrorKind, RpcError, discovery as wire, sandbox::Sandbox};

use crate::{
    paths::{guard::PathGuard, native},
    requests::CancelCheck,
};
use scan::{Budget, Scan};

/// The most directories in one request.
pub const MAX_ROOTS: usize = 128;

/// The memory reserved for an answer while it is built; its text is limited to this.
pub const ANSWER_BYTES: u64 = 8 << 20;

/// Returns the guard of the connection, confined as a sandbox says; fails if that cannot be enforced.
pub type Confine<'a> = dyn Fn(&Sandbox) -> Result<PathGuard, RpcError> + 'a;

/// Where the host's user installs plugins and skills.
#[derive(Clone, Debug)]
pub struct InstallDirs {
    codex_home: Option<PathBuf>,
    user_skills: Option<PathBuf>,
}

impl InstallDirs {
    /// Takes the directory of Codex from the home of the user, unless it is elsewhere.
    pub fn new(codex_home: Option<PathBuf>, home: Option<&Path>) -> Self {
        InstallDirs {
            codex_home: codex_home.or_else(|| home.map(|home| home.join(".codex"))),
            user_skills: home.map(|home| home.join(".agents/skills")),
        }
    }

    /// Returns the directories that are searched.
    pub fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.codex_home.iter().chain(&self.user_skills)
    }
}

/// Answers `capabilityRoots/discoverV1`. Blocks, and may hang.
pub fn discover_roots(
    request: wire::DiscoverRoots,
    confine: &Confine<'_>,
    wanted: &CancelCheck,
) -> wire::DiscoverRootsReply {
    let mut budget = Budget::default();
    let roots = request.roots.into_iter().map(|root| discover_root(root, confine, &mut budget, wanted));
    wire::DiscoverRootsReply { roots: roots.collect() }
}

/// Answers `capabilities/discoverV2`. Blocks, and may hang.
pub fn discover_installed(
    dirs: &InstallDirs,
    guard: &PathGuard,
    wanted: &CancelCheck,
) -> wire::DiscoverReply {
    installed::discover(dirs, guard, wanted)
}

fn discover_root(
    root: wire::Root,
    confine: &Confine<'_>,
    budget: &mut Budget,
    wanted: &CancelCheck,
) -> wire::FoundRoot {
    let scanned = confine(&root.sandbox).and_then(|guard| {
        let failed = |mut error: RpcError| {
            error.message = format!("failed to inspect capability root {}: {}", root.path, error.message);
            error
        };
        let path = native(&root.path).map_err(failed)?;
        Scan::run(&root.path, path, &guard, budget, wanted).map_err(|error| match error.kind {
            // The message is complete already.
            ErrorKind::InvalidInput => error,
            _ => failed(error),
        })
    });
    let (scan, error) = match scanned {
        Ok(scan) => (scan, None),
        Err(error) => (Scan::default(), Some(error.message)),
    };
    wire::FoundRoot {
        id: root.id,
        path: root.path,
        plugin: scan.plugin,
        skills: scan.skills,
        namespace_manifests: scan.manifests,
        warnings: scan.warnings,
        error,
    }
}
