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
use remex_access::scope::FileAccess;
use remex_proto::{ErrorKind, RpcError};

use super::shown;
use crate::paths::{
    guard::PathGuard,
    open::{self, Links},
};

/// The files of a directory with rules for it and for those below; the last one decides.
const IGNORE_FILES: [&str; 2] = [".gitignore", ".ignore"];

/// How much of one of them is used, and of those of a directory and all above it.
const MAX_FILE: usize = 64 << 10;
const MAX_ALL: usize = 128 << 10;

/// How many rules one of them may have, and those of a directory and all above it.
const MAX_RULES: usize = 2000;
const MAX_ALL_RULES: usize = 4000;

/// How many rules are compiled at a time: this takes some milliseconds.
const BLOCK: usize = 200;

/// The longest glob.
const MAX_GLOB: usize = 4 << 10;

/// How many braces a glob may open, and so how deep they are nested: the library for globs recurses without a limit.
const MAX_BRACES: usize = 32;

/// The directories in which version control keeps its own files.
const VERSION_CONTROL: [&str; 4] = [".git", ".hg", ".jj", ".svn"];

/// How many globs a request may have, and how long they may be together.
const MAX_GLOBS: usize = 1000;
const MAX_GLOBS_LEN: usize = 64 << 10;

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
        let len: usize = globs.iter().map(String::len).sum();
        if len > MAX_GLOBS_LEN {
            return invalid(format!("the globs have {len} bytes together; limit is {MAX_GLOBS_LEN}"));
        }
        let mut builder = GitignoreBuilder::new(".");
        builder.allow_unclosed_class(false);
        for glob in globs {
            if let Err(why) = check(glob) {
                return invalid(format!("`{}` {why}", shown(glob)));
            }
            if let Err(error) = builder.add_line(None, glob) {
                return invalid(format!("`{}` is not a glob: {}", shown(glob), reason(&error)));
            }
        }
        match builder.build() {
            Ok(matcher) => Ok(Self(matcher)),
            Err(error) => invalid(format!("the globs do not fit together: {}", reason(&error))),
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
    /// How many more bytes and rules of ignore files may be used.
    room: usize,
    rules: usize,
    /// What is not used of the ignore files above the directory where the search begins.
    problems: Vec<(PathBuf, String)>,
    /// The rules of the nearest directory that has some.
    nearest: Option<Arc<RulesOfDirectory>>,
}

struct RulesOfDirectory {
    matcher: Gitignore,
    directory: PathBuf,
    parent: Option<Arc<RulesOfDirectory>>,
}

impl Drop for RulesOfDirectory {
    /// Drops the rules above one after the other: there may be too many for recursion.
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(rules) = next {
            next = Arc::into_inner(rules).and_then(|mut rules| rules.parent.take());
        }
    }
}

impl Rules {
    /// Returns rules that exclude nothing, whatever is in the tree.
    pub(super) fn none() -> Self {
        Self {
            is_used: false,
            directory: PathBuf::new(),
            room: MAX_ALL,
            rules: MAX_ALL_RULES,
            problems: Vec::new(),
            nearest: None,
        }
    }

    /// Returns the rules of the directories above one, up to the root of its repository, unless the search is cancelled.
    pub(super) fn above(path: &Path, guard: &PathGuard, goes_on: &dyn Fn() -> bool) -> Self {
        let directory = guard.canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let exists = |path: &Path| {
            let at = guard.entry(path, Links::Follow, FileAccess::Read);
            at.is_ok_and(|at| at.kind().is_ok())
        };
        let root = directory.ancestors().take_while(|_| goes_on()).find(|above| exists(&above.join(".git")));
        let mut rules = Self { is_used: true, ..Self::none() };
        if let Some(root) = root {
            let mut between: Vec<_> =
                directory.ancestors().skip(1).take_while(|above| above.starts_with(root)).collect();
            between.reverse();
            for above in between {
                if !goes_on() {
                    break;
                }
                rules.directory = above.to_owned();
                for name in IGNORE_FILES {
                    let path = above.join(name);
                    let at = guard.target(&path, Links::Refuse, FileAccess::Read);
                    if let Ok((file, _)) = at.and_then(|at| open::for_reading(&at))
                        && let Err(why) = rules.add(&file, goes_on)
                    {
                        rules.problems.push((path, why));
                    }
                }
            }
        }
        rules.directory = directory;
        rules
    }

    /// Returns what is not used of the ignore files above.
    pub(super) fn take_problems(&mut self) -> Vec<(PathBuf, String)> {
        std::mem::take(&mut self.problems)
    }

    /// Returns the rules for the entries of a directory in this one.
    pub(super) fn enter(&self, name: &OsStr) -> Self {
        Self { directory: self.directory.join(name), ..self.clone() }
    }

    /// Returns whether a file of this name has rules.
    pub(super) fn wants(&self, name: &[u8]) -> bool {
        self.is_used && IGNORE_FILES.iter().any(|wanted| wanted.as_bytes() == name)
    }

    /// Adds an ignore file of this directory, unless the search is cancelled; as in git, invalid lines have no effect.
    ///
    /// An error says what is not used of it.
    pub(super) fn add(&mut self, file: &File, goes_on: &dyn Fn() -> bool) -> Result<(), String> {
        if !goes_on() {
            return Ok(());
        }
        let most = MAX_FILE.min(self.room);
        let mut content = Vec::new();
        file.take(most as u64 + 1).read_to_end(&mut content).map_err(|error| error.to_string())?;
        let mut problems = Vec::new();
        if content.len() > most {
            let lines = content[..most].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            content.truncate(lines);
            problems.push(format!(
                "it is used up to byte {lines} only: limit is {MAX_FILE} bytes, and {MAX_ALL} with those of the directories above"
            ));
        }
        self.room -= content.len();
        let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&content);
        let mut left = MAX_RULES.min(self.rules);
        let mut builder = GitignoreBuilder::new(".");
        let (mut first, mut in_block) = (1, 0);
        // The first of the lines that are too long or too deep, and how many.
        let (mut skipped, mut skips) = (None, 0);
        for (number, line) in (1..).zip(content.split(|byte| *byte == b'\n')) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.starts_with(b"#") || line.trim_ascii().is_empty() {
                continue;
            }
            let Ok(line) = std::str::from_utf8(line) else { continue };
            if let Err(why) = check(line) {
                skipped.get_or_insert((number, why));
                skips += 1;
                continue;
            }
            if left == 0 {
                problems.push(format!(
                    "it is used up to line {} only: limit is {MAX_RULES} rules, and {MAX_ALL_RULES} with those of the directories above",
                    number - 1
                ));
                break;
            }
            left -= 1;
            self.rules -= 1;
            in_block += 1;
            let _ = builder.add_line(None, line);
            if in_block == BLOCK {
                if !goes_on() {
                    return Ok(());
                }
                problems.extend(self.add_block(&builder, first));
                builder = GitignoreBuilder::new(".");
                (first, in_block) = (number + 1, 0);
            }
        }
        problems.extend(self.add_block(&builder, first));
        if let Some((number, why)) = skipped {
            let more = if skips > 1 { format!(", and so are {} others", skips - 1) } else { String::new() };
            problems.push(format!("line {number} is left out, since it {why}{more}"));
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }

    /// Adds rules, which decide before those that were added until now; returns what is wrong with them.
    fn add_block(&mut self, builder: &GitignoreBuilder, first: usize) -> Option<String> {
        match builder.build() {
            Ok(matcher) if matcher.is_empty() => None,
            Ok(matcher) => {
                let (directory, parent) = (self.directory.clone(), self.nearest.take());
                self.nearest = Some(Arc::new(RulesOfDirectory { matcher, directory, parent }));
                None
            }
            Err(error) => {
                Some(format!("up to {BLOCK} rules from line {first} are left out: {}", reason(&error)))
            }
        }
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

/// Returns why a glob is not given to the library for globs, which is only safe with short and flat ones.
fn check(glob: &str) -> Result<(), String> {
    if glob.len() > MAX_GLOB {
        return Err(format!("is a glob of {} bytes; limit is {MAX_GLOB}", glob.len()));
    }
    let braces = glob.bytes().filter(|byte| *byte == b'{').count();
    if braces > MAX_BRACES {
        return Err(format!("is a glob with {braces} opening braces; limit is {MAX_BRACES}"));
    }
    Ok(())
}

/// Returns why a glob is none, without the glob.
fn reason(error: &ignore::Error) -> String {
    match error {
        ignore::Error::Glob { err, .. } => shown(err),
        error => shown(&error.to_string()),
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
