//! Searches one directory tree, breadth-first and within limits.

use std::{
    collections::{HashSet, VecDeque},
    ffi::{OsStr, OsString},
    io::Read as _,
    path::{Component, Path, PathBuf},
};

use remex_access::scope::FileAccess;
use remex_base::io_error::io_error;
use remex_proto::{ErrorKind, HostPath, RpcError, discovery as wire};
use rustix::{fs::FileType, io::Errno};
use serde_json::Value;

use super::{ANSWER_BYTES, CancelCheck, PathGuard};
use crate::paths::{
    descent::{self, Identity},
    names::{self, Smallest},
    open::{self, Links},
};

/// How far below a root files are found.
const MAX_DEPTH: u32 = 6;

/// The most directories below one root.
const MAX_DIRECTORIES: usize = 10_000;

/// The most entries below one root.
const MAX_ENTRIES: usize = 50_000;

/// The roots of one request together have at most this many times the limits of one.
const ROOTS_WORTH: usize = 4;

/// The longest file that is returned.
const MAX_FILE_LEN: u64 = 1 << 20;

/// The most warnings of one root.
const MAX_WARNINGS: usize = 100;

/// Directories with the manifest of a plugin, most preferred first.
const MANIFESTS: [&str; 3] = [".codex-plugin", ".claude-plugin", ".cursor-plugin"];

/// The file that describes a skill.
const SKILL: &str = "SKILL.md";

/// The remaining budget of the searches of one request.
pub(super) struct Budget {
    directories: usize,
    entries: usize,
    text: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            directories: ROOTS_WORTH * MAX_DIRECTORIES,
            entries: ROOTS_WORTH * MAX_ENTRIES,
            text: ANSWER_BYTES,
        }
    }
}

/// The entries of a directory tree.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) plugin: Option<wire::PluginFiles>,
    /// Sorted by URI.
    pub(super) skills: Vec<wire::SkillFiles>,
    pub(super) manifests: Vec<wire::TextFile>,
    pub(super) warnings: Vec<String>,
}

impl Scan {
    /// Searches the directory `path`, which the client calls `shown`; the thread may hang.
    pub(super) fn run(
        shown: &HostPath,
        path: &Path,
        guard: &PathGuard,
        budget: &mut Budget,
        wanted: &CancelCheck,
    ) -> Result<Self, RpcError> {
        let at = guard.target(path, Links::Follow, FileAccess::Read)?;
        let root = at.stat().map_err(|error| io_error(&error.into(), path))?;
        if FileType::from_raw_mode(root.st_mode) != FileType::Directory {
            let message = format!("capability root {shown} is not a directory");
            return Err(RpcError::new(ErrorKind::InvalidInput, message));
        }
        let mut scanner = Scanner {
            guard,
            directories: budget.directories.min(MAX_DIRECTORIES),
            entries: budget.entries.min(MAX_ENTRIES),
            queue: VecDeque::new(),
            seen: HashSet::from([(root.st_dev, root.st_ino)]),
            budget,
            scan: Scan::default(),
        };
        scanner.queue.push_back((path.to_owned(), 0));
        scanner.walk(shown, wanted)?;
        let mut scan = scanner.scan;
        scan.skills.sort_by_cached_key(|skill| skill.instructions.path.to_uri());
        scan.manifests.sort_by_cached_key(|manifest| manifest.path.to_uri());
        Ok(scan)
    }

    /// Adds a warning, unless there are many.
    pub(super) fn warn(&mut self, warning: String) {
        match self.warnings.len() {
            0..MAX_WARNINGS => self.warnings.push(warning),
            MAX_WARNINGS => self.warnings.push("further warnings are left out".to_owned()),
            _ => {}
        }
    }
}

/// An entry of a directory that matters.
enum Found {
    Directory(Identity),
    Skill,
}

struct Scanner<'a> {
    guard: &'a PathGuard,
    /// How many directories may still be queued.
    directories: usize,
    /// How many entries may still be visited.
    entries: usize,
    queue: VecDeque<(PathBuf, u32)>,
    /// Directories that were queued: links may lead to one twice.
    seen: HashSet<Identity>,
    budget: &'a mut Budget,
    scan: Scan,
}

impl Scanner<'_> {
    fn walk(&mut self, shown: &HostPath, wanted: &CancelCheck) -> Result<(), RpcError> {
        let mut is_complete = true;
        while let Some((path, depth)) = self.queue.pop_front() {
            wanted.check().map_err(|error| io_error(&error, &path))?;
            match self.read(&path) {
                Ok((found, is_whole)) => {
                    is_complete &= is_whole;
                    is_complete &= self.visit(&path, depth, found);
                }
                Err(error) if depth == 0 => return Err(error),
                Err(error) => {
                    let uri = HostPath::from(path).to_uri();
                    self.scan.warn(format!("failed to scan capability path {uri}: {}", error.message));
                }
            }
        }
        if !is_complete {
            self.scan.warn(format!("capability scan reached its traversal limit (root: {shown})"));
        }
        Ok(())
    }

    /// Reads a directory; also returns whether all its entries may be visited.
    fn read(&mut self, path: &Path) -> Result<(Vec<(OsString, Found)>, bool), RpcError> {
        let at = self.guard.target(path, Links::Follow, FileAccess::Read)?;
        let opened = descent::open(at.directory(), at.name(), at.links_from_here());
        let directory = opened.map_err(|error| io_error(&error, path))?;
        let mut found = Smallest::new(self.entries);
        let mut entries = 0;
        names::for_each(&directory, |name, kind| {
            let name = names::os_str(name);
            entries += 1;
            if entries > self.entries {
                return Ok(());
            }
            let what = match kind {
                // A link of this name is no skill.
                FileType::RegularFile if name == SKILL => Found::Skill,
                FileType::Directory | FileType::Symlink => {
                    match self.guard.kind_of_target(&at, &directory, name) {
                        Some((FileType::Directory, identity)) => Found::Directory(identity),
                        _ => return Ok(()),
                    }
                }
                _ => return Ok(()),
            };
            found.push(name, what);
            Ok::<_, Errno>(())
        })
        .map_err(|error| io_error(&error.into(), path))?;
        let is_whole = entries <= self.entries;
        let visited = entries.min(self.entries);
        self.entries -= visited;
        self.budget.entries = self.budget.entries.saturating_sub(visited);
        Ok((found.into_sorted().0, is_whole))
    }

    /// Takes what a directory contains; returns whether all its subdirectories were queued.
    fn visit(&mut self, path: &Path, depth: u32, found: Vec<(OsString, Found)>) -> bool {
        let manifest = MANIFESTS
            .iter()
            .filter(|name| {
                found.iter().any(|(found, what)| found == *name && matches!(what, Found::Directory(_)))
            })
            .find_map(|name| self.text(&path.join(name).join("plugin.json")));
        if let Some(manifest) = manifest {
            if depth == 0 {
                self.scan.plugin = Some(self.plugin(path, manifest.clone()));
            }
            self.scan.manifests.push(manifest);
        }
        let mut is_complete = true;
        for (name, what) in found {
            match what {
                Found::Skill => self.skill(path),
                Found::Directory(identity) => is_complete &= self.enqueue(path, &name, depth, identity),
            }
        }
        is_complete
    }

    /// Queues a directory; returns false if a limit prevents that.
    fn enqueue(&mut self, parent: &Path, name: &OsStr, depth: u32, identity: Identity) -> bool {
        if depth == MAX_DEPTH || self.seen.contains(&identity) {
            return true;
        }
        if self.directories == 0 {
            return false;
        }
        self.directories -= 1;
        self.budget.directories = self.budget.directories.saturating_sub(1);
        self.seen.insert(identity);
        self.queue.push_back((parent.join(name), depth + 1));
        true
    }

    fn skill(&mut self, directory: &Path) {
        let Some(instructions) = self.text(&directory.join(SKILL)) else { return };
        let metadata = self.text(&directory.join("agents/openai.yaml"));
        self.scan.skills.push(wire::SkillFiles { instructions, metadata });
    }

    fn plugin(&mut self, root: &Path, manifest: wire::TextFile) -> wire::PluginFiles {
        let value: Value = serde_json::from_str(&manifest.contents).unwrap_or_default();
        let mcp_config = self.config(root, &manifest, &value, "mcpServers", ".mcp.json");
        let apps_config = self.config(root, &manifest, &value, "apps", ".app.json");
        wire::PluginFiles { manifest, mcp_config, apps_config }
    }

    /// Returns the file that a member of a manifest names, or the usual one if it names none.
    fn config(
        &mut self,
        root: &Path,
        manifest: &wire::TextFile,
        value: &Value,
        member: &str,
        usual: &str,
    ) -> Option<wire::TextFile> {
        let named = match &value[member] {
            Value::Null => usual,
            Value::String(path) => match inside(path) {
                Ok(path) => path,
                Err(why) => {
                    self.scan.warn(format!("ignoring {member} in {}: {why}", manifest.path.to_uri()));
                    usual
                }
            },
            // The manifest itself has what a file would have.
            _ => return None,
        };
        self.text(&root.join(named))
    }

    /// Returns the text of a regular file; a missing one is no reason for a warning, an unusable one is.
    fn text(&mut self, path: &Path) -> Option<wire::TextFile> {
        let (file, len) = match self.guard.target(path, Links::Follow, FileAccess::Read).and_then(|at| {
            let kind =
                FileType::from_raw_mode(at.stat().map_err(|error| io_error(&error.into(), path))?.st_mode);
            if kind == FileType::RegularFile { open::for_reading(&at).map(Some) } else { Ok(None) }
        }) {
            Ok(Some(opened)) => opened,
            Ok(None) => return None,
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return None;
            }
            // What the credential may not read does not exist for it.
            Err(error) if error.kind == ErrorKind::PermissionDenied && self.guard.is_limited() => {
                return None;
            }
            Err(error) => return self.unusable(path, &format!("cannot be read: {}", error.message)),
        };
        if len > MAX_FILE_LEN {
            return self.unusable(path, &format!("exceeds the {MAX_FILE_LEN}-byte limit"));
        }
        let mut bytes = Vec::new();
        if let Err(error) = file.take(MAX_FILE_LEN + 1).read_to_end(&mut bytes) {
            return self.unusable(path, &format!("cannot be read: {error}"));
        }
        let len = bytes.len() as u64;
        if len > MAX_FILE_LEN {
            return self.unusable(path, &format!("exceeds the {MAX_FILE_LEN}-byte limit"));
        }
        let contents = match String::from_utf8(bytes) {
            Ok(contents) => contents,
            Err(error) => return self.unusable(path, &format!("is not UTF-8: {}", error.utf8_error())),
        };
        let Some(left) = self.budget.text.checked_sub(len) else {
            return self.unusable(path, &format!("exceeds the {ANSWER_BYTES} bytes of text in one answer"));
        };
        self.budget.text = left;
        Some(wire::TextFile { path: HostPath::from(path.to_owned()), contents })
    }

    fn unusable(&mut self, path: &Path, why: &str) -> Option<wire::TextFile> {
        self.scan.warn(format!("capability file {} {why}", HostPath::from(path.to_owned()).to_uri()));
        None
    }
}

/// Returns the path in a manifest without its `./`, unless it leads out of the plugin.
fn inside(path: &str) -> Result<&str, &'static str> {
    let rest = path.strip_prefix("./").ok_or("path must start with `./`")?;
    let is_plain =
        Path::new(rest).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if is_plain && !rest.contains('\0') { Ok(rest) } else { Err("path must stay inside the plugin") }
}
