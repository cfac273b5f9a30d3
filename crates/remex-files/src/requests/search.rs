//! Searching the files of a tree, with the patterns, globs and ignore rules of ripgrep.
//!
//! Directories are entered by name without following links, and only regular files are opened, so no link leads out of
//! the tree and nothing blocks that is no file. One search uses one thread and a bounded buffer, and ends by itself: every
//! limit ends it with what it has found. Start at [`TreeSearch`].

mod content;
mod rules;

use std::{
    ffi::{CString, OsString},
    io,
    os::{fd::BorrowedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use remex_access::scope::FileAccess;
use remex_proto::{ErrorKind, HostPath, RpcError, fs as wire};
use remex_sandbox::Action;
use rustix::{
    fs::{FileType, Mode, OFlags, openat},
    io::Errno,
};

use self::{
    content::{Content, Outcome},
    rules::{Globs, Rules},
};
use super::{
    AnswerSize, CancelCheck, FileWork, PathAccess, PathGuard,
    descent::{self, Descent},
    guard::TreeGuard,
    io_error,
    names::{self, Smallest},
    native, open,
    open::Links,
};

/// How many entries one search visits.
const MAX_VISITED: u64 = 2_000_000;

/// How deep one search goes, which bounds the paths that it keeps.
const MAX_DEPTH: u64 = 512;

/// How many names wait to be visited at a time, in all directories above the current one.
const MAX_WAITING: usize = 200_000;

/// How many problems, and how many binary files, are named.
const MAX_NAMED: usize = 50;

const MAX_ITEMS: u64 = 10_000;
const DEFAULT_ITEMS: u64 = 500;
const MAX_BYTES: u64 = 1 << 20;
const DEFAULT_BYTES: u64 = 256 << 10;
const MAX_LINE: u64 = 64 << 10;
const DEFAULT_LINE: u64 = 1 << 10;
const MAX_TIMEOUT_MS: u64 = 120_000;
const DEFAULT_TIMEOUT_MS: u64 = 20_000;
const MAX_CONTEXT: u64 = 100;

/// The size of an item besides its path and text.
const ITEM: usize = 64;

impl FileWork for wire::SearchFiles {
    const ANSWER: AnswerSize = AnswerSize::Large(MAX_BYTES);

    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::looks(&self.path)
    }

    fn run(&self, guard: &PathGuard, wanted: &CancelCheck) -> Result<wire::SearchReply, RpcError> {
        let path = native(&self.path)?;
        let budget = Budget::new(&self.options)?;
        let content = Content::new(&self.options)?;
        let globs = Globs::new(&self.options.globs)?;
        let failed = |error: io::Error| io_error(&error, path);
        let at = guard.target(path, Links::Follow, FileAccess::Read)?;
        let found = at.stat().map_err(|error| failed(error.into()))?;
        let mut search = TreeSearch {
            options: &self.options,
            content,
            budget,
            wanted,
            visited: 0,
            waiting: 0,
            reply: wire::SearchReply::default(),
        };
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            let mut rules = Rules::none();
            if !self.options.with_ignored {
                let deadline = search.budget.deadline;
                rules = Rules::above(path, guard, &|| wanted.check().is_ok() && Instant::now() < deadline);
            }
            for (path, why) in rules.take_problems() {
                search.fail(path, why);
            }
            let directory = descent::open(at.directory(), at.name(), at.links_from_here()).map_err(failed)?;
            let descent = Descent::new(directory).map_err(failed)?;
            search.tree(path, descent, TreeGuard::new(&at), &globs, rules).map_err(failed)?;
        } else {
            let (file, _) = open::for_reading(&at)?;
            search.file(path.to_owned(), &file).map_err(failed)?;
        }
        Ok(search.reply)
    }
}

/// How much a search may still return.
#[derive(Debug)]
struct Budget {
    /// Matching lines, or files, that are skipped first.
    skip: u64,
    items: u64,
    bytes: usize,
    deadline: Instant,
    /// Which limit has ended the search.
    reached: Option<wire::SearchLimit>,
}

impl Budget {
    fn new(options: &wire::SearchOptions) -> Result<Self, RpcError> {
        let within = |name: &str, value: Option<u64>, default: u64, range: std::ops::RangeInclusive<u64>| {
            let value = value.unwrap_or(default);
            if range.contains(&value) {
                return Ok(value);
            }
            let message = format!("`{name}` is {value}");
            let hint = format!("give a number from {} to {}", range.start(), range.end());
            Err(RpcError::new(ErrorKind::InvalidInput, message).with_hint(hint))
        };
        for (name, lines) in
            [("contextBefore", options.context_before), ("contextAfter", options.context_after)]
        {
            within(name, Some(lines), 0, 0..=MAX_CONTEXT)?;
        }
        within("maxLineBytes", options.max_line_bytes, DEFAULT_LINE, 1..=MAX_LINE)?;
        let items = within("maxItems", options.max_items, DEFAULT_ITEMS, 1..=MAX_ITEMS)?;
        let bytes = within("maxBytes", options.max_bytes, DEFAULT_BYTES, 1..=MAX_BYTES)?;
        let timeout = within("timeoutMs", options.timeout_ms, DEFAULT_TIMEOUT_MS, 0..=MAX_TIMEOUT_MS)?;
        Ok(Budget {
            skip: options.skip,
            items,
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            deadline: Instant::now() + Duration::from_millis(timeout),
            reached: None,
        })
    }

    /// Takes an item; returns whether it is to be returned, and not skipped or beyond a limit.
    fn take_item(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        match self.items.checked_sub(1) {
            Some(left) => self.items = left,
            None => self.reached = Some(wire::SearchLimit::Items),
        }
        self.reached.is_none()
    }

    /// Takes room for so many bytes; returns whether there was any.
    fn take_bytes(&mut self, len: usize) -> bool {
        match self.bytes.checked_sub(len + ITEM) {
            Some(left) => self.bytes = left,
            None => self.reached = Some(wire::SearchLimit::Bytes),
        }
        self.reached.is_none()
    }

    /// Returns whether the search has ended, also because its time is over.
    fn is_over(&mut self) -> bool {
        if self.reached.is_none() && Instant::now() >= self.deadline {
            self.reached = Some(wire::SearchLimit::Time);
        }
        self.reached.is_some()
    }
}

/// A search in progress.
struct TreeSearch<'a> {
    options: &'a wire::SearchOptions,
    content: Content,
    budget: Budget,
    wanted: &'a CancelCheck,
    visited: u64,
    /// Names in all levels that have not been visited.
    waiting: usize,
    reply: wire::SearchReply,
}

/// A directory whose entries are being visited.
struct Level {
    path: PathBuf,
    rules: Rules,
    /// Whether a glob includes everything in it.
    is_included: bool,
    entries: std::vec::IntoIter<(OsString, FileType)>,
}

impl TreeSearch<'_> {
    /// Searches what is below a directory. An error is only that of the directory itself, or a cancellation.
    fn tree(
        &mut self,
        root: &Path,
        mut descent: Descent,
        mut tree: TreeGuard,
        globs: &Globs,
        rules: Rules,
    ) -> io::Result<()> {
        let first = self.level(root.to_owned(), &descent, &tree, rules, false)?;
        let mut levels = vec![first];
        while let Some(level) = levels.last_mut() {
            self.wanted.check()?;
            if self.budget.is_over() {
                break;
            }
            let Some((name, kind)) = level.entries.next() else {
                levels.pop();
                if !levels.is_empty() {
                    tree.leave();
                    if let Err(error) = descent.leave() {
                        // Moved away meanwhile: what is left of the tree cannot be reached from here.
                        self.fail(root.to_owned(), error.to_string());
                        break;
                    }
                }
                continue;
            };
            self.waiting -= 1;
            self.visited += 1;
            if self.visited > MAX_VISITED {
                self.budget.reached = Some(wire::SearchLimit::Entries);
                break;
            }
            let path = level.path.join(&name);
            let is_directory = kind == FileType::Directory;
            if !is_directory && kind != FileType::RegularFile {
                continue;
            }
            let below = path.strip_prefix(root).unwrap_or(&path);
            let chosen = globs.judge(below, is_directory);
            let is_chosen = chosen.unwrap_or(level.is_included || (globs.is_open() && !is_directory));
            if chosen == Some(false) || (!is_directory && !is_chosen) {
                continue;
            }
            // As with ripgrep, a file that a glob names is searched whatever the ignore files say.
            if (is_directory || chosen != Some(true)) && level.rules.exclude(&name, is_directory) {
                self.reply.ignored += 1;
                continue;
            }
            if let Err(error) = tree.check(&name, Action::Read) {
                self.fail(path, error.message);
                continue;
            }
            let Ok(c_name) = CString::new(name.as_bytes()) else { continue };
            if !is_directory {
                match open_file(descent.current(), &c_name) {
                    Ok(Some(file)) => self.file(path, &file)?,
                    Ok(None) => {}
                    Err(error) => self.fail(path, error.to_string()),
                }
                continue;
            }
            let depth = levels.len() as u64;
            if self.options.max_depth.is_some_and(|max| depth > max) {
                continue;
            }
            if depth > MAX_DEPTH {
                self.reply.truncated = Some(wire::SearchLimit::Entries);
                continue;
            }
            let Some(level) = levels.last() else { continue };
            let rules = level.rules.enter(&name);
            if let Err(error) = descent.enter(&c_name, Links::Refuse) {
                // Removed or replaced meanwhile.
                if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) {
                    self.fail(path, error.to_string());
                }
                continue;
            }
            tree.enter(&c_name);
            match self.level(path.clone(), &descent, &tree, rules, is_chosen) {
                Ok(level) => levels.push(level),
                Err(error) => {
                    self.fail(path, error.to_string());
                    tree.leave();
                    if descent.leave().is_err() {
                        break;
                    }
                }
            }
        }
        self.reply.truncated = self.budget.reached.or(self.reply.truncated);
        Ok(())
    }

    /// Reads the names and the ignore files of the current directory.
    fn level(
        &mut self,
        path: PathBuf,
        descent: &Descent,
        tree: &TreeGuard,
        mut rules: Rules,
        is_included: bool,
    ) -> io::Result<Level> {
        let limit = MAX_WAITING.saturating_sub(self.waiting).max(1);
        let mut smallest = Smallest::new(limit);
        let mut ignore_files = Vec::new();
        names::for_each(descent.current(), |name, kind| {
            if rules.wants(name.to_bytes()) && kind == FileType::RegularFile {
                ignore_files.push(name.to_owned());
            }
            smallest.push(names::os_str(name), kind);
            Ok::<_, Errno>(())
        })?;
        // `.gitignore` comes before `.ignore`, which decides.
        ignore_files.sort_unstable();
        let (wanted, deadline) = (self.wanted, self.budget.deadline);
        let goes_on = || wanted.check().is_ok() && Instant::now() < deadline;
        for name in ignore_files {
            if tree.allows(names::os_str(&name), Action::Read)
                && let Ok(Some(file)) = open_file(descent.current(), &name)
                && let Err(why) = rules.add(&file, &goes_on)
            {
                self.fail(path.join(names::os_str(&name)), why);
            }
        }
        let (entries, has_more) = smallest.into_sorted();
        if has_more {
            self.reply.truncated = Some(wire::SearchLimit::Entries);
        }
        self.waiting += entries.len();
        Ok(Level { path, rules, is_included, entries: entries.into_iter() })
    }

    /// Searches one file. An error is a cancellation.
    fn file(&mut self, path: PathBuf, file: &std::fs::File) -> io::Result<()> {
        let host_path = HostPath::from(path.clone());
        let path_len = host_path.to_uri().len();
        let mut found = wire::FoundFile::new(host_path);
        if self.options.pattern.is_none() {
            if self.budget.take_item() && self.budget.take_bytes(path_len) {
                self.reply.files.push(found);
            }
            self.reply.truncated = self.budget.reached.or(self.reply.truncated);
            return Ok(());
        }
        self.reply.searched += 1;
        let budget = &mut self.budget;
        let outcome = self.content.search(self.options, file, self.wanted, budget, &mut found);
        self.wanted.check()?;
        let is_out_of_time = matches!(outcome, Outcome::OutOfTime);
        match outcome {
            Outcome::Done | Outcome::OutOfTime => {}
            Outcome::Binary => {
                self.reply.binary += 1;
                if self.reply.binary_files.len() < MAX_NAMED && self.budget.take_bytes(path_len) {
                    self.reply.binary_files.push(found.path);
                }
                self.reply.truncated = self.budget.reached.or(self.reply.truncated);
                return Ok(());
            }
            Outcome::Failed(why) => self.fail(path, why),
        }
        let is_found = match self.options.report {
            wire::SearchReport::Lines => !found.lines.is_empty(),
            _ => found.count > 0 && self.budget.take_item(),
        };
        if is_found && (self.budget.take_bytes(path_len) || !found.lines.is_empty()) {
            self.reply.files.push(found);
        }
        if is_out_of_time {
            self.budget.reached.get_or_insert(wire::SearchLimit::Time);
        }
        self.reply.truncated = self.budget.reached.or(self.reply.truncated);
        Ok(())
    }

    fn fail(&mut self, path: PathBuf, message: String) {
        if self.reply.errors.len() < MAX_NAMED && self.budget.take_bytes(message.len()) {
            self.reply.errors.push(wire::WalkError::new(HostPath::from(path), message));
        }
    }
}

/// Returns the beginning of what a client wrote, for a message.
fn shown(text: &str) -> String {
    const MAX_SHOWN: usize = 100;
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Opens a regular file in a directory; `None` if it is gone or something else by now.
fn open_file(directory: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<Option<std::fs::File>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let descriptor = match openat(directory, name, flags, Mode::empty()) {
        Ok(descriptor) => descriptor,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let stat = rustix::fs::fstat(&descriptor)?;
    if open::file_type(&stat) != FileType::RegularFile {
        return Ok(None);
    }
    open::readable(&descriptor, &stat).map(Some)
}
