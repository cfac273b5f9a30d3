//! Which entries of a tree are excluded: gitignore rules of the caller, and of the `.gitignore` files in the tree.
//!
//! Pure. Start at [`TreeRules`]; a walk has one [`DirectoryRules`] for each directory.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};

use crate::{Error, base::error::usage};

/// The file of a directory with the rules for it and for those below.
pub(super) const GITIGNORE: &str = ".gitignore";

/// The length up to which a `.gitignore` file is used, in bytes.
pub(super) const MAX_GITIGNORE_LEN: usize = 1 << 20;

/// Rules for the entries of a tree that are not copied, in the syntax of `.gitignore`.
///
/// The rules apply to paths relative to the root of the tree, never to the root itself. An excluded directory is not read,
/// so nothing below it can be included again. Rules of the caller take precedence over `.gitignore` files, and those of a
/// directory over those of its parents.
///
/// [`TreeCopy`](crate::fs::TreeCopy) has methods for these rules; this is for a [`CopyTask`](super::CopyTask).
///
/// ```
/// use remex_client::fs::TreeRules;
///
/// let rules = TreeRules::new(["target/", "*.log", "!important.log"])?.with_gitignore_files();
/// # Ok::<(), remex_client::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct TreeRules {
    matcher: Arc<Gitignore>,
    gitignore_files: GitignoreFiles,
}

/// Whether the `.gitignore` files in a tree are rules or only content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum GitignoreFiles {
    #[default]
    Content,
    Rules,
}

impl Default for TreeRules {
    /// Excludes nothing.
    fn default() -> Self {
        Self { matcher: Arc::new(Gitignore::empty()), gitignore_files: GitignoreFiles::Content }
    }
}

impl TreeRules {
    /// Creates rules, one pattern each.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for an invalid pattern.
    ///
    /// ```
    /// use remex_client::{Error, fs::TreeRules};
    ///
    /// assert!(TreeRules::new(["/build", "*.o"]).is_ok());
    /// assert!(matches!(TreeRules::new(["{a"]), Err(Error::Usage { .. })));
    /// ```
    pub fn new<P: AsRef<str>>(patterns: impl IntoIterator<Item = P>) -> Result<Self, Error> {
        let mut builder = GitignoreBuilder::new(".");
        for pattern in patterns {
            let pattern = pattern.as_ref();
            builder.add_line(None, pattern).map_err(|error| invalid(pattern, &error))?;
        }
        let matcher = builder.build().map_err(|error| invalid("", &error))?;
        Ok(Self { matcher: Arc::new(matcher), ..Self::default() })
    }

    /// Also excludes what the `.gitignore` files in the tree exclude.
    ///
    /// They are read from the source, wherever that is. The directory `.git` is copied unless a rule excludes it.
    ///
    /// ```
    /// # use remex_client::fs::TreeRules;
    /// let rules = TreeRules::new([".git/"])?.with_gitignore_files();
    /// # Ok::<(), remex_client::Error>(())
    /// ```
    #[must_use]
    pub fn with_gitignore_files(self) -> Self {
        Self { gitignore_files: GitignoreFiles::Rules, ..self }
    }
}

fn invalid(pattern: &str, error: &ignore::Error) -> Error {
    usage(
        format!("cannot exclude `{pattern}`: {error}"),
        "write the pattern as in a `.gitignore` file, for example `target/` or `*.log`",
    )
}

/// The rules for the entries of one directory of a tree.
#[derive(Debug, Clone)]
pub(super) struct DirectoryRules {
    rules: TreeRules,
    /// Relative to the root of the tree.
    directory: PathBuf,
    /// The rules of the nearest `.gitignore` file.
    nearest: Option<Arc<RulesFile>>,
}

/// The rules of one `.gitignore` file.
#[derive(Debug)]
struct RulesFile {
    matcher: Gitignore,
    /// Relative to the root of the tree.
    directory: PathBuf,
    parent: Option<Arc<RulesFile>>,
}

impl DirectoryRules {
    /// Returns the rules for the entries of the root.
    pub(super) fn root(rules: TreeRules) -> Self {
        Self { rules, directory: PathBuf::new(), nearest: None }
    }

    /// Returns the rules for the entries of a directory in this one.
    pub(super) fn enter(&self, name: &OsStr) -> Self {
        Self { directory: self.directory.join(name), ..self.clone() }
    }

    /// Returns the path of an entry, relative to the root of the tree.
    pub(super) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns whether the `.gitignore` file of this directory is to be added.
    pub(super) fn use_gitignore_files(&self) -> bool {
        self.rules.gitignore_files == GitignoreFiles::Rules
    }

    /// Adds the `.gitignore` file of this directory; as in git, invalid lines have no effect.
    pub(super) fn add_gitignore(&mut self, content: &[u8]) {
        let mut builder = GitignoreBuilder::new(".");
        let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content);
        for line in content.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            // A glob is text, so a line that is not matches nothing.
            if let Ok(line) = std::str::from_utf8(line) {
                let _ = builder.add_line(None, line);
            }
        }
        let Ok(matcher) = builder.build() else { return };
        if !matcher.is_empty() {
            let (directory, parent) = (self.directory.clone(), self.nearest.take());
            self.nearest = Some(Arc::new(RulesFile { matcher, directory, parent }));
        }
    }

    /// Returns whether an entry of this directory is excluded.
    pub(super) fn exclude(&self, name: &OsStr, is_directory: bool) -> bool {
        let path = self.path_of(name);
        let mut verdict = decide(&self.rules.matcher.matched(&path, is_directory));
        let mut next = self.nearest.as_deref();
        while let (None, Some(file)) = (verdict, next) {
            let below = path.strip_prefix(&file.directory).unwrap_or(&path);
            verdict = decide(&file.matcher.matched(below, is_directory));
            next = file.parent.as_deref();
        }
        verdict.unwrap_or(false)
    }
}

/// Returns whether a match excludes, `None` if no rule matches.
fn decide<T>(matched: &Match<T>) -> Option<bool> {
    match matched {
        Match::None => None,
        Match::Ignore(_) => Some(true),
        Match::Whitelist(_) => Some(false),
    }
}

/// Refuses a `.gitignore` file that is too long to be one.
pub(super) fn check_len(path: &Path, content: Bytes) -> Result<Bytes, Error> {
    if content.len() <= MAX_GITIGNORE_LEN {
        return Ok(content);
    }
    Err(usage(
        format!("cannot use the rules in `{}`: it is longer than {MAX_GITIGNORE_LEN} bytes", path.display()),
        "shorten it, or copy without the rules of `.gitignore` files",
    ))
}

#[cfg(test)]
mod tests;
