//! Which files of a tree are searched: globs of the request, and the ignore files of the tree.
//!
//! Start at [`Globs`] and [`Rules`].

use std::{
    ffi::OsStr,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};
use remex_proto::{ErrorKind, RpcError};

use crate::{
    fs::{
        guard::PathGuard,
        open::{self, Links},
    },
    scope::FileAccess,
};

/// The files of a directory with rules for it and for those below; the last one decides.
const IGNORE_FILES: [&str; 2] = [".gitignore", ".ignore"];

/// How much of them is used for one directory, with those above it.
const MAX_RULES: u64 = 1 << 20;

/// The directories in which version control keeps its own files.
const VERSION_CONTROL: [&str; 4] = [".git", ".hg", ".jj", ".svn"];

/// How many globs a request may have.
const MAX_GLOBS: usize = 1000;

/// The globs of a request.
pub(super) struct Globs(Gitignore);

impl Globs {
    pub(super) fn new(globs: &[String]) -> Result<Self, RpcError> {
        let invalid = |message: String| {
            Err(RpcError::new(ErrorKind::InvalidInput, message).with_hint(
                "write globs as ripgrep does, such as `*.rs`, `src/**/*.{c,h}`, `docs/` or `!*.min.js`",
            ))
        };
        if globs.len() > MAX_GLOBS {
            return invalid(format!("there are {} globs; limit is {MAX_GLOBS}", globs.len()));
        }
        let mut builder = GitignoreBuilder::new(".");
        builder.allow_unclosed_class(false);
        for glob in globs {
            if let Err(error) = builder.add_line(None, glob) {
                return invalid(format!("`{glob}` is not a glob: {error}"));
            }
        }
        match builder.build() {
            Ok(matcher) => Ok(Self(matcher)),
            Err(error) => invalid(format!("the globs do not fit together: {error}")),
        }
    }

    /// Returns whether there is no glob that something has to match.
    pub(super) fn is_open(&self) -> bool {
        self.0.num_ignores() == 0
    }

    /// Returns whether a glob includes or excludes a path below the root, if one matches.
    pub(super) fn judge(&self, below: &Path, is_directory: bool) -> Option<bool> {
        // In an ignore file, a glob excludes and `!` includes.
        decide(&self.0.matched(below, is_directory))
    }
}

/// The rules for the entries of one directory.
#[derive(Clone)]
pub(super) struct Rules {
    is_used: bool,
    /// The real path of the directory, or the one that it was asked for by.
    directory: PathBuf,
    /// How much more of ignore files may be used.
    room: u64,
    /// The rules of the nearest directory that has some.
    nearest: Option<Arc<RulesOfDirectory>>,
}

struct RulesOfDirectory {
    matcher: Gitignore,
    directory: PathBuf,
    parent: Option<Arc<RulesOfDirectory>>,
}

impl Rules {
    /// Returns rules that exclude nothing, whatever is in the tree.
    pub(super) fn none() -> Self {
        Self { is_used: false, directory: PathBuf::new(), room: 0, nearest: None }
    }

    /// Returns the rules of the directories above one, up to the root of its repository.
    pub(super) fn above(path: &Path, guard: &PathGuard) -> Self {
        let directory = guard.canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let exists = |path: &Path| {
            let at = guard.entry(path, Links::Follow, FileAccess::Read);
            at.is_ok_and(|at| at.kind().is_ok())
        };
        let root = directory.ancestors().find(|above| exists(&above.join(".git")));
        let mut rules = Self { is_used: true, directory: PathBuf::new(), room: MAX_RULES, nearest: None };
        if let Some(root) = root {
            let mut between: Vec<_> =
                directory.ancestors().skip(1).take_while(|above| above.starts_with(root)).collect();
            between.reverse();
            for above in between {
                rules.directory = above.to_owned();
                for name in IGNORE_FILES {
                    let path = above.join(name);
                    let at = guard.target(&path, Links::Refuse, FileAccess::Read);
                    if let Ok((file, _)) = at.and_then(|at| open::for_reading(&at)) {
                        let _ = rules.add(&file);
                    }
                }
            }
        }
        rules.directory = directory;
        rules
    }

    /// Returns the rules for the entries of a directory in this one.
    pub(super) fn enter(&self, name: &OsStr) -> Self {
        Self { directory: self.directory.join(name), ..self.clone() }
    }

    /// Returns whether a file of this name has rules.
    pub(super) fn wants(&self, name: &[u8]) -> bool {
        self.is_used && IGNORE_FILES.iter().any(|wanted| wanted.as_bytes() == name)
    }

    /// Adds an ignore file of this directory; as in git, invalid lines have no effect.
    pub(super) fn add(&mut self, file: &File) -> Result<(), String> {
        let mut content = Vec::new();
        file.take(self.room + 1).read_to_end(&mut content).map_err(|error| error.to_string())?;
        self.room = self
            .room
            .checked_sub(content.len() as u64)
            .ok_or_else(|| format!("its rules are not used: they are longer than {MAX_RULES} bytes"))?;
        let mut builder = GitignoreBuilder::new(".");
        let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&content);
        for line in content.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if let Ok(line) = std::str::from_utf8(line) {
                let _ = builder.add_line(None, line);
            }
        }
        let matcher = builder.build().map_err(|error| error.to_string())?;
        if !matcher.is_empty() {
            let (directory, parent) = (self.directory.clone(), self.nearest.take());
            self.nearest = Some(Arc::new(RulesOfDirectory { matcher, directory, parent }));
        }
        Ok(())
    }

    /// Returns whether an entry of this directory is excluded.
    pub(super) fn exclude(&self, name: &OsStr, is_directory: bool) -> bool {
        if !self.is_used {
            return false;
        }
        if is_directory && VERSION_CONTROL.iter().any(|own| name == *own) {
            return true;
        }
        let path = self.directory.join(name);
        let (mut verdict, mut next) = (None, self.nearest.as_deref());
        while let (None, Some(rules)) = (verdict, next) {
            let below = path.strip_prefix(&rules.directory).unwrap_or(&path);
            verdict = decide(&rules.matcher.matched(below, is_directory));
            next = rules.parent.as_deref();
        }
        verdict.unwrap_or(false)
    }
}

/// Returns what a match says, `None` if no line matches: of an ignore file, whether it excludes.
fn decide<T>(matched: &Match<T>) -> Option<bool> {
    match matched {
        Match::None => None,
        Match::Ignore(_) => Some(true),
        Match::Whitelist(_) => Some(false),
    }
}
