//! The plugins and skills that the host's user has installed.

use std::{
    cmp::Ordering,
    ffi::OsString,
    path::{Path, PathBuf},
};

use remex_access::scope::FileAccess;
use remex_base::io_error::io_error;
use remex_proto::{ErrorKind, HostPath, RpcError, discovery as wire};
use rustix::{fs::FileType, io::Errno};
use serde_json::Value;

use super::{
    CancelCheck, InstallDirs, PathGuard,
    scan::{Budget, Scan},
    skill,
};
use crate::paths::{
    descent,
    names::{self, Smallest},
    open::Links,
};

/// The most names that are looked at in one directory of the plugins.
const MAX_NAMES: usize = 1000;

/// The most plugins in one answer.
const MAX_PLUGINS: usize = 1000;

/// The version of a plugin that its author works on; it is preferred to all others.
const LOCAL: &str = "local";

/// Finds what is installed; the thread may hang.
pub(super) fn discover(dirs: &InstallDirs, guard: &PathGuard, wanted: &CancelCheck) -> wire::DiscoverReply {
    let mut search =
        Search { guard, wanted, budget: Budget::default(), reply: wire::DiscoverReply::default() };
    if let Some(home) = &dirs.codex_home {
        search.plugins(&home.join("plugins/cache"));
        search.skills("codex-home-skills", &home.join("skills"));
    }
    if let Some(directory) = &dirs.user_skills {
        search.skills("user-agent-skills", directory);
    }
    search.reply
}

struct Search<'a> {
    guard: &'a PathGuard,
    wanted: &'a CancelCheck,
    budget: Budget,
    reply: wire::DiscoverReply,
}

impl Search<'_> {
    /// Adds the newest version of each plugin in `MARKETPLACE/NAME/VERSION`.
    fn plugins(&mut self, cache: &Path) {
        for (market, markets) in self.directories(cache) {
            for (name, versions) in self.directories(&markets) {
                let newest = self.directories(&versions).into_iter().max_by(|a, b| by_version(&a.0, &b.0));
                if let Some((version, root)) = newest
                    && self.reply.plugins.len() < MAX_PLUGINS
                {
                    self.plugin(format!("{name}@{market}"), version, &root);
                }
            }
        }
        self.reply.plugins.sort_by(|a, b| a.id.cmp(&b.id));
    }

    fn plugin(&mut self, id: String, version: String, path: &Path) {
        let root = HostPath::from(path.to_owned());
        let scan = match Scan::run(&root, path, self.guard, &mut self.budget, self.wanted) {
            Ok(scan) => scan,
            Err(error) => return self.warn(&format!("plugin `{id}` cannot be searched"), &error),
        };
        self.reply.warnings.extend(scan.warnings);
        let Some(files) = scan.plugin else {
            return self.reply.warnings.push(format!("plugin `{id}` has no manifest in {root}"));
        };
        let Ok(manifest) = serde_json::from_str::<Value>(&files.manifest.contents) else {
            let path = files.manifest.path.to_uri();
            return self.reply.warnings.push(format!("the manifest {path} of plugin `{id}` is not JSON"));
        };
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let name = text(&manifest["name"]).unwrap_or_else(|| version.clone());
        let display_name = text(&manifest["interface"]["displayName"]).unwrap_or_else(|| name.clone());
        let mut skills = self.describe(&scan.skills);
        for skill in &mut skills {
            skill.name = format!("{name}:{}", skill.name);
        }
        let version = Some(version);
        self.reply.plugins.push(wire::Plugin {
            id,
            display_name,
            remote_plugin_id: None,
            version,
            root,
            files,
            skills,
        });
    }

    /// Adds the skills below a directory, if it exists.
    fn skills(&mut self, id: &str, path: &Path) {
        let root = HostPath::from(path.to_owned());
        let scan = match Scan::run(&root, path, self.guard, &mut self.budget, self.wanted) {
            Ok(scan) => scan,
            Err(error) if error.kind == ErrorKind::NotFound => return,
            Err(error) => return self.warn("skills cannot be searched", &error),
        };
        self.reply.warnings.extend(scan.warnings);
        let root = wire::DiscoveryRoot { id: id.to_owned(), path: root };
        let skills = self.describe(&scan.skills);
        let skills =
            skills.into_iter().map(|skill| wire::Skill { discovery_root: Some(root.clone()), ..skill });
        self.reply.skills.extend(skills);
    }

    fn describe(&mut self, found: &[wire::SkillFiles]) -> Vec<wire::Skill> {
        let mut described = Vec::new();
        for files in found {
            match skill::describe(files) {
                Some(skill) => described.push(skill),
                None => self.reply.warnings.push(format!(
                    "skill {} has no front matter with a description, or its name is too long",
                    files.instructions.path.to_uri()
                )),
            }
        }
        described
    }

    /// Returns the directories in a directory, by name; none if there is no such directory.
    fn directories(&mut self, path: &Path) -> Vec<(String, PathBuf)> {
        match self.read(path) {
            Ok(names) => {
                let names = names.into_iter().filter_map(|name| name.into_string().ok());
                names.map(|name| (name.clone(), path.join(name))).collect()
            }
            Err(error) if error.kind == ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                self.warn("plugins cannot be listed", &error);
                Vec::new()
            }
        }
    }

    fn read(&self, path: &Path) -> Result<Vec<OsString>, RpcError> {
        let at = self.guard.target(path, Links::Follow, FileAccess::Read)?;
        let opened = descent::open(at.directory(), at.name(), at.links_from_here());
        let directory = opened.map_err(|error| io_error(&error, path))?;
        let mut found = Smallest::new(MAX_NAMES);
        names::for_each(&directory, |name, kind| {
            let name = names::os_str(name);
            let is_directory = match kind {
                FileType::Directory => true,
                FileType::Symlink => {
                    let target = self.guard.kind_of_target(&at, &directory, name);
                    target.is_some_and(|(kind, _)| kind == FileType::Directory)
                }
                _ => false,
            };
            if is_directory {
                found.push(name, ());
            }
            Ok::<_, Errno>(())
        })
        .map_err(|error| io_error(&error.into(), path))?;
        Ok(found.into_sorted().0.into_iter().map(|(name, ())| name).collect())
    }

    fn warn(&mut self, what: &str, error: &RpcError) {
        self.reply.warnings.push(format!("{what}: {}", error.message));
    }
}

/// Compares versions: numbers by value, a release after its pre-releases, the author's own last.
fn by_version(a: &str, b: &str) -> Ordering {
    let key = |version: &str| {
        let (release, pre) =
            version.split_once('-').map_or((version, None), |(a, b)| (a, Some(b.to_owned())));
        let numbers: Vec<u64> = release.split('.').map_while(|part| part.parse().ok()).collect();
        (version == LOCAL, numbers, pre.is_none(), pre, version.to_owned())
    };
    key(a).cmp(&key(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_by_number_and_the_authors_own_is_newer_still() {
        let mut versions = ["1.9.0", "local", "1.10.0", "1.10.0-beta", "abc", "0.1", "1.10"];
        versions.sort_by(|a, b| by_version(a, b));
        assert_eq!(versions, ["abc", "0.1", "1.9.0", "1.10", "1.10.0-beta", "1.10.0", "local"]);
    }
}
