//! Patches of several files: as models write them (`*** Begin Patch`), or unified diffs.
//!
//! The whole patch is made in memory before anything is written. Start at [`Tools::apply_patch`]; [`parse`] reads patches,
//! [`fit`] finds where hunks go.

mod fit;
mod parse;

use std::path::{Path, PathBuf};

use remex_client::{
    Client,
    fs::{ContentHash, Fs, IfMatch},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::parse::{Change, Hunk, Kind, parse};
use super::{
    Tools,
    edit::{Text, read_text},
    files::{changed, has_changed},
};
use crate::{
    answer::{Answer, ToolError, ToolResult},
    environment::Environment,
};

/// The parameters of `apply_patch`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApplyPatch {
    /// From `*** Begin Patch` to `*** End Patch` with `*** Update File: PATH`, `*** Add File: PATH` and `*** Delete File: PATH`,
    /// or a unified diff.
    patch: String,
    environment: Option<String>,
}

/// What `apply_patch` returns.
#[derive(Debug, Serialize)]
struct Patched {
    changed: Vec<String>,
}

/// What becomes of one file.
struct Planned {
    path: PathBuf,
    /// Where the file is now, if it is moved.
    from: Option<PathBuf>,
    /// The content that is there now; `None` if there is no file, or it is a link that is removed.
    there: Option<ContentHash>,
    /// The new content; `None` if it stays.
    text: Option<String>,
    is_removed: bool,
    executable: Option<bool>,
}

/// A patch in memory.
struct Plan<'a> {
    environment: &'a Environment,
    client: &'a Client,
    files: Vec<Planned>,
}

impl Tools {
    pub(super) async fn apply_patch(&self, params: ApplyPatch) -> Answer {
        let environment = self.environment(params.environment.as_deref())?;
        let client = environment.client().await?;
        let changes = parse(&params.patch)?;
        let mut plan = Plan { environment, client: &client, files: Vec::new() };
        for change in &changes {
            plan.add(change).await?;
        }
        let mut done: Vec<String> = Vec::new();
        for file in &plan.files {
            if let Err(error) = file.make(&client.fs()).await {
                let before = if done.is_empty() { "nothing was changed".to_owned() } else { done.join("; ") };
                return Err(ToolError::new(format!("{error}\nbefore that: {before}")));
            }
            done.push(file.what());
        }
        Ok(ToolResult::new(done.join("\n"), &Patched { changed: done }))
    }
}

impl Plan<'_> {
    /// Makes a change in memory.
    async fn add(&mut self, change: &Change) -> Result<(), ToolError> {
        let path = self.environment.path(self.client, &change.path)?;
        if self.files.iter().any(|file| file.from.as_ref() == Some(&path)) {
            return Err(refused(&path, "is moved by the patch before this change", "name its new place"));
        }
        match change.kind {
            Kind::Add => self.create(path, change).await,
            Kind::Delete => self.delete(path, change).await,
            Kind::Update => self.update(path, change).await,
        }
    }

    async fn create(&mut self, path: PathBuf, change: &Change) -> Result<(), ToolError> {
        let text = Some(added(&change.hunks));
        if let Some(file) = self.files.iter_mut().find(|file| file.path == path && file.is_removed) {
            (file.text, file.is_removed, file.executable) = (text, false, change.executable);
            return Ok(());
        }
        self.expect_absent(&path).await?;
        let executable = change.executable;
        self.files.push(Planned { path, from: None, there: None, text, is_removed: false, executable });
        Ok(())
    }

    async fn delete(&mut self, path: PathBuf, change: &Change) -> Result<(), ToolError> {
        let fs = self.client.fs();
        let failed = |error| ToolError::of_file(&error, &path);
        if change.is_diff {
            let index = self.load(&path).await?;
            let file = &mut self.files[index];
            let left = fitted(&path, file.text.as_deref().unwrap_or_default(), &change.hunks)?;
            if !left.trim_start_matches('\u{feff}').is_empty() {
                return Err(refused(
                    &path,
                    "has lines that the patch does not delete",
                    "read it again, and delete all of it",
                ));
            }
            (file.is_removed, file.text) = (true, None);
            return Ok(());
        }
        if let Some(file) = self.files.iter_mut().find(|file| file.path == path) {
            if file.is_removed || file.there.is_none() || file.from.is_some() {
                return Err(refused(
                    &path,
                    "is added, moved or deleted by the same patch",
                    "leave one of the two out",
                ));
            }
            (file.is_removed, file.text) = (true, None);
            return Ok(());
        }
        let metadata = fs.metadata(&path).without_links().await.map_err(failed)?;
        if metadata.is_directory {
            return Err(refused(&path, "is a directory", "a patch deletes only files"));
        }
        let there = if metadata.is_file { Some(fs.hash(&path).await.map_err(failed)?.hash) } else { None };
        self.files.push(Planned { path, from: None, there, text: None, is_removed: true, executable: None });
        Ok(())
    }

    async fn update(&mut self, path: PathBuf, change: &Change) -> Result<(), ToolError> {
        let index = if change.hunks.is_empty() { self.find(&path).await? } else { self.load(&path).await? };
        if !change.hunks.is_empty() {
            let file = &mut self.files[index];
            file.text = Some(fitted(&path, file.text.as_deref().unwrap_or_default(), &change.hunks)?);
        }
        if let Some(to) = &change.to {
            let to = self.environment.path(self.client, to)?;
            if to != path {
                self.expect_absent(&to).await?;
                let file = &mut self.files[index];
                if file.there.is_some() && file.from.is_none() {
                    file.from = Some(path);
                }
                file.path = to;
            }
        }
        let file = &mut self.files[index];
        file.executable = change.executable.or(file.executable);
        Ok(())
    }

    async fn expect_absent(&self, path: &Path) -> Result<(), ToolError> {
        let is_planned = self.files.iter().any(|file| file.path == path);
        let metadata = self.client.fs().metadata(path).without_links().await;
        let is_there = match metadata {
            Ok(_) => true,
            Err(error) if error.kind() == Some(remex_client::ErrorKind::NotFound) => false,
            Err(error) => return Err(ToolError::of_file(&error, path)),
        };
        if is_planned || is_there {
            return Err(refused(path, "exists already", "update it instead, or choose another path"));
        }
        Ok(())
    }

    /// Returns the index of a file, whose text need not be known.
    async fn find(&mut self, path: &Path) -> Result<usize, ToolError> {
        if let Some(index) = self.files.iter().position(|file| file.path == path) {
            if self.files[index].is_removed {
                return Err(refused(
                    path,
                    "is deleted by the patch before this change",
                    "leave one of the two out",
                ));
            }
            return Ok(index);
        }
        let found = self.client.fs().hash(path).await.map_err(|error| ToolError::of_file(&error, path))?;
        self.push(path, found.hash, None);
        Ok(self.files.len() - 1)
    }

    /// Returns the index of a file whose text is there.
    async fn load(&mut self, path: &Path) -> Result<usize, ToolError> {
        let planned = self.files.iter().position(|file| file.path == path);
        if let Some(index) = planned {
            self.find(path).await?;
            let file = &mut self.files[index];
            if file.text.is_none() {
                let now = file.from.as_deref().unwrap_or(path);
                let Text { text, hash } = read_text(&self.client.fs(), now).await?;
                if file.there != Some(hash) {
                    return Err(has_changed(now));
                }
                file.text = Some(text);
            }
            return Ok(index);
        }
        let Text { text, hash } = read_text(&self.client.fs(), path).await?;
        self.push(path, hash, Some(text));
        Ok(self.files.len() - 1)
    }

    fn push(&mut self, path: &Path, there: ContentHash, text: Option<String>) {
        let (path, there) = (path.to_owned(), Some(there));
        self.files.push(Planned { path, from: None, there, text, is_removed: false, executable: None });
    }
}

impl Planned {
    fn what(&self) -> String {
        let path = self.path.display();
        match &self.from {
            _ if self.is_removed => format!("deleted {}", self.from.as_ref().unwrap_or(&self.path).display()),
            Some(from) => format!("moved {} to {path}", from.display()),
            None => format!("wrote {path}"),
        }
    }

    async fn make(&self, fs: &Fs) -> Result<(), ToolError> {
        let now = self.from.as_ref().unwrap_or(&self.path);
        let failed = |error| ToolError::of_file(&error, now);
        if self.is_removed && self.there.is_none() && self.is_new(fs).await? {
            return Ok(());
        }
        if (self.is_removed || self.from.is_some())
            && let Some(there) = self.there
            && fs.hash(now).await.map_err(failed)?.hash != there
        {
            return Err(has_changed(now));
        }
        if self.is_removed {
            return fs.remove(now).await.map_err(failed);
        }
        let is_new = self.there.is_none();
        if (is_new || self.from.is_some())
            && let Some(parent) = self.path.parent()
        {
            fs.create_dir_all(parent).await.map_err(|error| ToolError::of_file(&error, parent))?;
        }
        if let Some(from) = &self.from {
            // A rename keeps the permissions.
            let renamed = fs.rename(from, &self.path).keep_existing().await;
            renamed.map_err(|error| ToolError::of_file(&error, &self.path))?;
        }
        if let Some(text) = &self.text {
            let expected = self.there.map_or(IfMatch::Absent, IfMatch::Content);
            if let Err(error) = fs.write(&self.path, text).if_match(expected).atomic().await {
                if let Some(from) = &self.from {
                    let back = fs.rename(&self.path, from).keep_existing().await;
                    back.map_err(|error| ToolError::of_file(&error, from))?;
                }
                return Err(changed(&error, &self.path));
            }
        }
        self.set_executable(fs).await
    }

    /// Returns whether the patch itself added the file that it deletes.
    async fn is_new(&self, fs: &Fs) -> Result<bool, ToolError> {
        let metadata = fs.metadata(&self.path).without_links().await;
        match metadata {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == Some(remex_client::ErrorKind::NotFound) => Ok(true),
            Err(error) => Err(ToolError::of_file(&error, &self.path)),
        }
    }

    /// Sets or clears the execute permission of everyone who may read the file.
    async fn set_executable(&self, fs: &Fs) -> Result<(), ToolError> {
        let Some(executable) = self.executable else { return Ok(()) };
        let failed = |error| ToolError::of_file(&error, &self.path);
        // A host without permissions has nothing to set.
        let Some(mode) = fs.metadata(&self.path).await.map_err(failed)?.mode else { return Ok(()) };
        let mode = mode & 0o7777;
        let wanted = if executable { mode | ((mode & 0o444) >> 2) } else { mode & !0o111 };
        if wanted == mode {
            return Ok(());
        }
        fs.set_permissions(&self.path, wanted).await.map_err(failed)
    }
}

/// Returns the content of a new file.
fn added(hunks: &[Hunk]) -> String {
    let mut content = String::new();
    for (_, line) in hunks.iter().flat_map(|hunk| &hunk.lines) {
        content.push_str(line);
        content.push('\n');
    }
    if hunks.last().is_some_and(|hunk| hunk.ends_with_newline == Some(false)) {
        content.pop();
    }
    content
}

fn fitted(path: &Path, text: &str, hunks: &[Hunk]) -> Result<String, ToolError> {
    fit::apply(text, hunks).map_err(|misfit| {
        let fit::Misfit { number, why, hint } = misfit;
        ToolError::new(format!(
            "hunk {number} of `{}` does not fit: {why}; nothing was changed",
            path.display()
        ))
        .with_hint(hint)
    })
}

fn refused(path: &Path, why: &str, hint: &str) -> ToolError {
    ToolError::new(format!("`{}` {why}; nothing was changed", path.display())).with_hint(hint)
}
