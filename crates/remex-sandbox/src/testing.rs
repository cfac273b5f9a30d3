//! For tests: a file system in memory, and a table of decisions that every way to enforce a policy must agree with.
//!
//! The table is `cases.json`. Its trees are below a base directory, so that a test can also create them on disk, apply
//! the profile with a real jail and try each action. Start at [`scenarios`].

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use remex_proto::{
    HostPath,
    sandbox::{
        Access, Context, Entry, EntryPath, FileSystem, MissingPathBehavior, Network, Permissions, Special,
    },
};
use serde::Deserialize;

use crate::{
    base::{
        access::Action,
        error::{PolicyError, Reason},
        host::{Host, Node, locate},
    },
    policy::Policy,
    resolve::{Request, resolve},
};

/// A file system in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    nodes: BTreeMap<PathBuf, Node>,
}

impl Tree {
    /// Creates a tree from lines: `/directory/`, `/file` or `/link -> target`; directories above are implied.
    pub fn new<'a>(lines: impl IntoIterator<Item = &'a str>) -> Self {
        let mut tree = Self::default();
        for line in lines {
            match line.split_once(" -> ") {
                Some((path, target)) => tree.insert(Path::new(path), Node::Link(target.into())),
                None if line.ends_with('/') => tree.insert(Path::new(line), Node::Directory),
                None => tree.insert(Path::new(line), Node::File),
            }
        }
        tree
    }

    /// Adds or replaces a node, and the directories above it.
    pub fn insert(&mut self, path: &Path, node: Node) {
        for directory in path.ancestors().skip(1) {
            self.nodes.entry(directory.to_owned()).or_insert(Node::Directory);
        }
        self.nodes.insert(path.components().collect(), node);
    }

    /// Removes a node and everything below it.
    pub fn remove(&mut self, path: &Path) {
        self.nodes.retain(|known, _| !known.starts_with(path));
    }

    /// Returns every path in the tree.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.nodes.keys().map(PathBuf::as_path)
    }

    /// Creates on disk what is at and below a base directory.
    pub fn create(&self, base: &Path) -> io::Result<()> {
        for (path, node) in self.nodes.iter().filter(|(path, _)| path.starts_with(base)) {
            match node {
                Node::Missing => {}
                Node::File => fs::write(path, "content")?,
                Node::Directory => fs::create_dir_all(path)?,
                Node::Link(target) => symlink(target, path)?,
            }
        }
        Ok(())
    }
}

impl Host for Tree {
    fn node(&self, path: &Path) -> io::Result<Node> {
        Ok(self.nodes.get(path).cloned().unwrap_or(Node::Missing))
    }

    fn is_system_link(&self, link: &Path) -> bool {
        link.parent() == Some(Path::new("/"))
    }

    /// Files have no content worth reading.
    fn head(&self, _path: &Path) -> Option<Vec<u8>> {
        None
    }
}

/// A profile in a file system, and what it allows there.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What it shows.
    pub name: String,
    /// The file system: the base, and a few directories of the system.
    pub tree: Tree,
    /// The profile and what it is relative to.
    pub context: Context,
    /// `TMPDIR` in the environment of the process.
    pub tmpdir: Option<PathBuf>,
    /// What must happen.
    pub expected: Expected,
}

impl Scenario {
    /// Resolves the profile.
    pub fn resolve(&self, host: &impl Host) -> Result<Policy, PolicyError> {
        let tmpdir = self.tmpdir.as_deref().map(Path::as_os_str);
        resolve(&Request { context: &self.context, cwd: None, tmpdir }, host)
    }
}

/// What must come of a profile.
#[derive(Debug, Clone)]
pub enum Expected {
    /// It is refused, and the message contains this.
    Refused(String),
    /// It is resolved.
    Resolved {
        /// What may be done.
        cases: Vec<Case>,
        /// The rules that mounts cannot enforce: a jail that relies on mounts must refuse the profile.
        obstacles: Vec<PathBuf>,
    },
}

/// One decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// The path as a program writes it, links included.
    pub path: PathBuf,
    /// What it tries.
    pub action: Action,
    /// Whether it may.
    pub is_allowed: bool,
    /// Whether only judging each path can refuse it: mounts cover what exists, and a pattern denies what does not.
    pub is_beyond_mounts: bool,
}

impl Case {
    /// Returns what a policy says about it.
    pub fn decide(&self, policy: &Policy, host: &impl Host) -> Result<bool, Reason> {
        let path = match self.action {
            // These act on a link, and not on what it leads to.
            Action::Remove => match (self.path.parent(), self.path.file_name()) {
                (Some(parent), Some(name)) => locate(host, parent)?.path.join(name),
                _ => self.path.clone(),
            },
            Action::Read | Action::Write | Action::Create => locate(host, &self.path)?.path,
        };
        Ok(policy.allows(&path, self.action))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: String,
    tree: Vec<String>,
    profile: Vec<String>,
    roots: Option<Vec<String>>,
    tmpdir: Option<String>,
    #[serde(default)]
    cases: BTreeMap<String, String>,
    #[serde(default)]
    obstacles: Vec<String>,
    refused: Option<String>,
}

/// Returns the table with its trees below a base directory.
///
/// The base is absolute and without links. Panics if the table has a mistake.
pub fn scenarios(base: &Path) -> Vec<Scenario> {
    let lines: Vec<Line> =
        serde_json::from_str(include_str!("../cases.json")).expect("the table is valid JSON");
    lines.into_iter().map(|line| scenario(line, base)).collect()
}

fn scenario(line: Line, base: &Path) -> Scenario {
    let at = |path: &str| if path.starts_with('/') { PathBuf::from(path) } else { base.join(path) };
    let text = |path: &str| at(path).into_os_string().into_string().expect("the base is UTF-8");
    let mut tree = Tree::new(["/tmp/", "/usr/bin/env", "/bin -> usr/bin", "/etc/passwd", "/etc/shadow"]);
    for line in &line.tree {
        let nodes = Tree::new([&*text(line)]).nodes;
        let (path, node) = nodes.into_iter().next_back().expect("a line has a path");
        tree.insert(&path, node);
    }
    let entries = line.profile.iter().map(|entry| parse_entry(entry, &at)).collect();
    let roots = line.roots.unwrap_or_else(|| vec!["w".to_owned()]);
    let expected = match line.refused {
        Some(reason) => Expected::Refused(reason),
        None => Expected::Resolved {
            cases: line.cases.iter().flat_map(|(path, words)| parse_cases(&at(path), words)).collect(),
            obstacles: line.obstacles.iter().map(|path| at(path)).collect(),
        },
    };
    Scenario {
        name: line.name,
        tree,
        context: context(entries, Some(roots.iter().map(|root| at(root).into()).collect())),
        tmpdir: line.tmpdir.map(|path| at(&path)),
        expected,
    }
}

/// Returns a context with these entries and no network.
pub fn context(entries: Vec<Entry>, workspace_roots: Option<Vec<HostPath>>) -> Context {
    Context {
        permissions: Permissions::Managed {
            file_system: FileSystem::Restricted { entries },
            network: Network::Restricted,
        },
        windows_sandbox_level: "disabled".to_owned(),
        cwd: None,
        workspace_roots,
        policy_context: None,
        user_home_dir: None,
        temporary_directories: None,
        use_legacy_landlock: None,
        hosts: None,
        refuse_missing_writes: None,
    }
}

/// Parses `ACCESS PATH`, with `?` behind the access for an entry to skip if the path is missing.
///
/// A path is `:root`, `:minimal`, `:tmpdir`, `:slash_tmp`, `:unknown`, `:roots`, `:roots/SUBPATH`, `glob:PATTERN` or
/// one of a file.
fn parse_entry(text: &str, at: &impl Fn(&str) -> PathBuf) -> Entry {
    let (access, path) = text.split_once(' ').expect("an entry has an access and a path");
    let (access, missing_path_behavior) = match access.strip_suffix('?') {
        Some(access) => (access, Some(MissingPathBehavior::Skip)),
        None => (access, None),
    };
    let access = match access {
        "read" => Access::Read,
        "write" => Access::Write,
        "deny" => Access::Deny,
        other => panic!("`{other}` is no access"),
    };
    let special = |value| EntryPath::Special { value };
    let path = match path {
        ":root" => special(Special::Root),
        ":minimal" => special(Special::Minimal),
        ":tmpdir" => special(Special::Tmpdir),
        ":slash_tmp" => special(Special::SlashTmp),
        ":unknown" => special(Special::Unknown),
        ":roots" => special(Special::ProjectRoots { subpath: None }),
        path => match (path.strip_prefix(":roots/"), path.strip_prefix("glob:")) {
            (Some(subpath), _) => special(Special::ProjectRoots { subpath: Some(subpath.to_owned()) }),
            (None, Some(pattern)) => {
                let base = at("").into_os_string().into_string().expect("the base is UTF-8");
                let pattern = pattern.replace("BASE", base.trim_end_matches('/'));
                EntryPath::GlobPattern { pattern }
            }
            (None, None) => EntryPath::Path { path: at(path).into() },
        },
    };
    Entry { path, access, missing_path_behavior }
}

/// Parses words such as `read+` and `write-`; `~` instead of `-` is a refusal beyond mounts.
fn parse_cases(path: &Path, words: &str) -> Vec<Case> {
    let case = |word: &str| {
        let (action, sign) = word.split_at(word.len() - 1);
        Case {
            path: path.to_owned(),
            action: match action {
                "read" => Action::Read,
                "write" => Action::Write,
                "create" => Action::Create,
                "remove" => Action::Remove,
                other => panic!("`{other}` is no action"),
            },
            is_allowed: sign == "+",
            is_beyond_mounts: sign == "~",
        }
    };
    words.split(' ').map(case).collect()
}
