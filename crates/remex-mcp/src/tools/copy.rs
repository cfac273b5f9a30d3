//! Copies of files and trees, within an environment or from one to another.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use remex_base::lock;
use remex_client::{
    Client,
    fs::{CopyAction, CopyFailure, CopyMarker, CopyObserver, CopyPath, CopyProblem, CopyTask, copy_trees},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Tools;
use crate::{
    answer::{Answer, ToolError, ToolResult},
    call::Call,
    environment::Environment,
};

/// The parameters of `copy`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Copy {
    /// The file or directory to copy.
    from_path: String,
    from_environment: Option<String>,
    /// Where the copy is to be, with its own name; what is there is replaced, and a directory is merged.
    to_path: String,
    to_environment: Option<String>,
}

/// What `copy` returns.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Copied {
    /// How many files and links were copied.
    copied: usize,
    /// Pipes, sockets and devices of a tree; the copy is complete without them.
    left_out: Vec<String>,
    /// What could not be copied, and why.
    failures: Vec<String>,
}

impl Tools {
    pub(super) async fn copy(&self, params: Copy, call: &Call) -> Answer {
        let (from_environment, from_client, from) =
            self.at(params.from_environment.as_deref(), Some(&params.from_path)).await?;
        let (to_environment, to_client, to) =
            self.at(params.to_environment.as_deref(), Some(&params.to_path)).await?;
        let metadata = from_client.fs().metadata(&from).without_links().await;
        let metadata = metadata.map_err(|error| ToolError::of_file(&error, &from))?;
        let is_same_host = from_environment.name() == to_environment.name();
        if metadata.is_directory && is_same_host && is_within(&to_client, &to, &from).await {
            return Err(ToolError::new(format!("`{}` is in `{}` itself", to.display(), from.display()))
                .with_hint("copy it to a place outside"));
        }
        if let Some(parent) = to.parent() {
            let made = to_client.fs().create_dir_all(parent).await;
            made.map_err(|error| ToolError::of_file(&error, parent))?;
        }
        let end = |environment: &Environment, client: &Client, path: PathBuf| {
            let label = format!("{}:{}", environment.name(), path.display());
            CopyPath::new(client.fs(), path, label)
        };
        let marker = format!("{}:{}", from_environment.name(), from.display()).into_bytes();
        let from = end(from_environment, &from_client, from);
        let to = end(to_environment, &to_client, to);
        let there = to.fs.metadata(&to.path).without_links().await.ok();
        let mut task = CopyTask::new(from, metadata, to, CopyMarker::new(marker));
        task.contents_only =
            there.as_ref().is_some_and(|there| there.is_directory) && task.metadata.is_directory;
        task.there = there;
        let counter = Arc::new(CopyCounter::default());
        let Ok(copied) = call.unless_stopped(Box::pin(copy_trees(vec![task], &counter))).await else {
            return Err(ToolError::new("the copy was cancelled; what is complete stays"));
        };
        let Ok(()) = copied;
        let copied = std::mem::take(&mut *lock(&counter.0));
        let text = if copied.failures.is_empty() {
            let mut text = format!("copied {} files and links", copied.copied);
            for label in &copied.left_out {
                text.push_str(&format!("\n[left out {label}: it is a pipe, a socket or a device]"));
            }
            text
        } else {
            let failures = copied.failures.join("\n");
            return Err(ToolError::new(format!(
                "copied {} files and links, but not all:\n{failures}",
                copied.copied
            )));
        };
        Ok(ToolResult::new(text, &copied))
    }
}

/// Counts what a copy does.
#[derive(Default)]
struct CopyCounter(Mutex<Copied>);

impl CopyObserver for CopyCounter {
    type Stop = std::convert::Infallible;

    fn on_action(&self, action: CopyAction, _: &str, _: &str) -> Result<(), Self::Stop> {
        if matches!(action, CopyAction::Copy | CopyAction::Link) {
            lock(&self.0).copied += 1;
        }
        Ok(())
    }

    fn on_special(&self, label: &str) -> Result<(), Self::Stop> {
        lock(&self.0).left_out.push(label.to_owned());
        Ok(())
    }

    fn on_failure(&self, failure: CopyFailure) -> Result<(), Self::Stop> {
        let why = match failure.problem {
            CopyProblem::Failed(error) => error.message(),
            CopyProblem::Special => "it is a pipe, a socket or a device".to_owned(),
            CopyProblem::SpecialExists { to } => format!("{to} is a pipe, a socket or a device"),
            CopyProblem::DirectoryExists { to } => format!("{to} is a directory"),
            CopyProblem::NotADirectory { to } => format!("{to} is not a directory"),
            other => format!("{other:?}"),
        };
        let text = format!("{}: {why}", failure.label);
        lock(&self.0).failures.push(text);
        Ok(())
    }
}

/// Returns whether a path, which need not exist, is below a directory.
async fn is_within(client: &Client, path: &Path, directory: &Path) -> bool {
    let real = async |path: &Path| {
        let found = client.fs().canonicalize(path).await.ok()?;
        found.native().ok().map(PathBuf::from)
    };
    let Some(directory) = real(directory).await else { return false };
    // What does not exist yet is below what does.
    for above in path.ancestors().skip(1) {
        if let Some(above) = real(above).await {
            return above.starts_with(&directory);
        }
    }
    false
}
