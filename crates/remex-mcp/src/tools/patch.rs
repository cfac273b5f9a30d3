//! Patches of several files: as models write them (`*** Begin Patch`), or unified diffs.
//!
//! Every hunk is found in the current text by its lines, before anything is written. Start at [`parse`] and [`apply`].

use std::path::PathBuf;

use remex_client::{Client, fs::IfMatch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Tools,
    edit::{Text, near, read_text},
    files::changed,
};
use crate::{
    answer::{Answer, Answered, Problem},
    environment::Environment,
};

/// How many files a patch may change.
const MAX_FILES: usize = 200;

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

/// What a patch does to one file.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Add { path: String, content: String },
    Delete { path: String },
    Update { path: String, to: Option<String>, hunks: Vec<Hunk> },
}

/// Lines to find, and what to put there.
#[derive(Debug, Default, PartialEq, Eq)]
struct Hunk {
    /// A line that comes somewhere before, such as the head of a function.
    anchor: Option<String>,
    old: Vec<String>,
    new: Vec<String>,
}

/// A change that fits, and is not made yet.
enum Planned {
    Write { path: PathBuf, content: String, expected: IfMatch },
    Remove { path: PathBuf },
}

impl Tools {
    pub(super) async fn apply_patch(&self, params: ApplyPatch) -> Answer {
        let environment = self.environment(params.environment.as_deref())?;
        let client = environment.client().await?;
        let changes = parse(&params.patch)?;
        let mut planned = Vec::new();
        for change in &changes {
            plan(change, environment, &client, &mut planned).await?;
        }
        let mut done: Vec<String> = Vec::new();
        for step in planned {
            let what = match &step {
                Planned::Write { path, .. } => format!("wrote {}", path.display()),
                Planned::Remove { path } => format!("deleted {}", path.display()),
            };
            if let Err(problem) = make(step, &client).await {
                let before = if done.is_empty() { "nothing was changed".to_owned() } else { done.join("; ") };
                return Err(Problem::new(format!("{problem}\nbefore that: {before}")));
            }
            done.push(what);
        }
        Ok(Answered::new(done.join("\n"), &Patched { changed: done }))
    }
}

/// Finds where a change fits, and changes nothing.
async fn plan(
    change: &Change,
    environment: &Environment,
    client: &Client,
    planned: &mut Vec<Planned>,
) -> Result<(), Problem> {
    let fs = client.fs();
    let resolve = |path: &str| environment.path(client, path);
    match change {
        Change::Add { path, content } => {
            let path = resolve(path)?;
            if fs.exists(&path).await.map_err(|error| Problem::of_file(&error, &path))? {
                return Err(Problem::new(format!(
                    "`{}` exists already; nothing was changed",
                    path.display()
                ))
                .with_hint("update it instead, or choose another path"));
            }
            planned.push(Planned::Write { path, content: content.clone(), expected: IfMatch::Absent });
        }
        Change::Delete { path } => {
            let path = resolve(path)?;
            let metadata = fs.metadata(&path).without_links().await;
            if metadata.map_err(|error| Problem::of_file(&error, &path))?.is_directory {
                return Err(Problem::new(format!(
                    "`{}` is a directory; nothing was changed",
                    path.display()
                ))
                .with_hint("a patch deletes only files"));
            }
            planned.push(Planned::Remove { path });
        }
        Change::Update { path, to, hunks } => {
            let path = resolve(path)?;
            let Text { text, hash } = read_text(&fs, &path).await?;
            let content = apply(&text, hunks).map_err(|(number, hint)| {
                Problem::new(format!(
                    "hunk {number} of `{}` does not fit; nothing was changed",
                    path.display()
                ))
                .with_hint(hint)
            })?;
            match to {
                None => planned.push(Planned::Write { path, content, expected: IfMatch::Content(hash) }),
                Some(to) => {
                    planned.push(Planned::Write { path: resolve(to)?, content, expected: IfMatch::Absent });
                    planned.push(Planned::Remove { path });
                }
            }
        }
    }
    Ok(())
}

async fn make(step: Planned, client: &Client) -> Result<(), Problem> {
    let fs = client.fs();
    match step {
        Planned::Write { path, content, expected } => {
            if expected == IfMatch::Absent
                && let Some(parent) = path.parent()
            {
                fs.create_dir_all(parent).await.map_err(|error| Problem::of_file(&error, parent))?;
            }
            let written = fs.write(&path, &content).if_match(expected).atomic().await;
            written.map(drop).map_err(|error| changed(&error, &path))
        }
        Planned::Remove { path } => fs.remove(&path).await.map_err(|error| Problem::of_file(&error, &path)),
    }
}

/// Reads a patch of either kind.
fn parse(patch: &str) -> Result<Vec<Change>, Problem> {
    let wrong = |number: usize, line: &str, hint: &str| {
        let line: String = line.chars().take(100).collect();
        Problem::new(format!("line {number} of the patch is wrong: `{line}`; nothing was changed"))
            .with_hint(hint)
    };
    let (mut changes, mut removed_path) = (Vec::<Change>::new(), None);
    for (number, line) in (1..).zip(patch.lines()) {
        let after = |prefix: &str| line.strip_prefix(prefix).map(|rest| rest.trim().to_owned());
        let in_hunk = matches!(changes.last(), Some(Change::Update { hunks, .. }) if !hunks.is_empty());
        if line.starts_with("*** Begin Patch") || line.starts_with("*** End") {
            continue;
        }
        if let Some(path) = after("*** Add File: ") {
            changes.push(Change::Add { path, content: String::new() });
        } else if let Some(path) = after("*** Delete File: ") {
            changes.push(Change::Delete { path });
        } else if let Some(path) = after("*** Update File: ") {
            changes.push(Change::Update { path, to: None, hunks: Vec::new() });
        } else if let Some(path) = after("*** Move to: ") {
            match changes.last_mut() {
                Some(Change::Update { to, .. }) => *to = Some(path),
                _ => return Err(wrong(number, line, "`*** Move to: ` follows `*** Update File: `")),
            }
        } else if line.starts_with("diff --git ")
            || line.starts_with("index ")
            || line.starts_with("new file mode ")
        {
            removed_path = None;
            if line.starts_with("diff ") {
                // The next hunk belongs to another file.
                changes.push(Change::Update { path: String::new(), to: None, hunks: Vec::new() });
            }
        } else if let Some(path) = after("--- ").filter(|_| !in_hunk || is_header(patch, number)) {
            removed_path = Some(of_diff(&path));
        } else if let (Some(path), Some(from)) = (after("+++ "), removed_path.take()) {
            let to = of_diff(&path);
            changes.push(match (from, to) {
                (None, Some(path)) => Change::Add { path, content: String::new() },
                (Some(path), None) => Change::Delete { path },
                (Some(from), Some(path)) => {
                    let moved = (from != path).then_some(path);
                    Change::Update { path: from, to: moved, hunks: Vec::new() }
                }
                (None, None) => return Err(wrong(number, line, "name a file")),
            });
        } else {
            add(line, &mut changes).map_err(|hint| wrong(number, line, hint))?;
        }
    }
    changes.retain(|change| !matches!(change, Change::Update { path, .. } if path.is_empty()));
    if changes.is_empty() || changes.len() > MAX_FILES {
        return Err(Problem::new(format!("the patch changes {} files", changes.len())).with_hint(
            "begin each file with `*** Update File: PATH`, or send a unified diff; at most 200 files",
        ));
    }
    Ok(changes)
}

/// Returns whether the next line is the other half of the head of a file in a unified diff.
fn is_header(patch: &str, number: usize) -> bool {
    patch.lines().nth(number).is_some_and(|next| next.starts_with("+++ "))
}

/// Returns the path in a line of a unified diff; `None` for no file.
fn of_diff(path: &str) -> Option<String> {
    let path = path.split('\t').next().unwrap_or(path);
    let path = path.strip_prefix("a/").or_else(|| path.strip_prefix("b/")).unwrap_or(path);
    (path != "/dev/null").then(|| path.to_owned())
}

/// Adds a line to the change of a file.
fn add(line: &str, changes: &mut [Change]) -> Result<(), &'static str> {
    match changes.last_mut() {
        Some(Change::Add { content, .. }) => match line.strip_prefix('+') {
            Some(text) => {
                content.push_str(text);
                content.push('\n');
            }
            None if line.starts_with("@@") || line.starts_with('\\') || line.is_empty() => {}
            None => return Err("each line of a new file begins with `+`"),
        },
        Some(Change::Update { hunks, .. }) => {
            if let Some(rest) = line.strip_prefix("@@") {
                // In a unified diff, the numbers are between two of these.
                let anchor = if rest.trim_start().starts_with('-') { None } else { Some(rest.trim()) };
                let anchor = anchor.filter(|anchor| !anchor.is_empty()).map(str::to_owned);
                hunks.push(Hunk { anchor, ..Hunk::default() });
                return Ok(());
            }
            if hunks.is_empty() {
                hunks.push(Hunk::default());
            }
            let Some(hunk) = hunks.last_mut() else { return Ok(()) };
            let text = |prefix| line.strip_prefix(prefix).map(str::to_owned);
            if let Some(text) = text('+') {
                hunk.new.push(text);
            } else if let Some(text) = text('-') {
                hunk.old.push(text);
            } else if line.starts_with('\\') {
                // `\\ No newline at end of file`
            } else if let Some(text) = text(' ').or_else(|| line.is_empty().then(String::new)) {
                hunk.old.push(text.clone());
                hunk.new.push(text);
            } else {
                return Err("each line of a hunk begins with a space, `+` or `-`");
            }
        }
        Some(Change::Delete { .. }) => {}
        None if line.trim().is_empty() => {}
        None => return Err("begin with `*** Begin Patch` and `*** Update File: PATH`, or with `--- a/PATH`"),
    }
    Ok(())
}

/// Applies hunks in order; fails with the number of the one that does not fit, and what is near.
fn apply(text: &str, hunks: &[Hunk]) -> Result<String, (usize, String)> {
    let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut from = 0;
    for (number, hunk) in (1..).zip(hunks) {
        if let Some(anchor) = &hunk.anchor {
            let found = lines.iter().skip(from).position(|line| line.trim() == anchor.trim());
            // In a unified diff, what follows the numbers is only for people.
            from = found.map_or(from, |at| from + at);
        }
        let mut old = hunk.old.as_slice();
        let mut new = hunk.new.as_slice();
        // A line that is only the end of the patch.
        while old.last().is_some_and(String::is_empty)
            && new.last().is_some_and(String::is_empty)
            && find(&lines, old, from).is_none()
        {
            (old, new) = (&old[..old.len() - 1], &new[..new.len() - 1]);
        }
        let at = if old.is_empty() { Some(lines.len()) } else { find(&lines, old, from) };
        let Some(at) = at else { return Err((number, near(text, &hunk.old.join("\n")))) };
        lines.splice(at..at + old.len(), new.iter().cloned());
        from = at + new.len();
    }
    let mut patched = lines.join(end);
    if !patched.is_empty() && (text.is_empty() || text.ends_with('\n')) {
        patched.push_str(end);
    }
    Ok(patched)
}

/// Finds lines from a position on, or else before it; exactly, or else without white space at their ends.
fn find(lines: &[String], wanted: &[String], from: usize) -> Option<usize> {
    let last = lines.len().checked_sub(wanted.len())?;
    [false, true].into_iter().find_map(|trims| {
        let is_same =
            |line: &str, wanted: &str| line == wanted || (trims && line.trim_end() == wanted.trim_end());
        let fits = |at: &usize| lines[*at..].iter().zip(wanted).all(|(line, wanted)| is_same(line, wanted));
        (from..=last).find(fits).or_else(|| (0..from.min(last + 1)).find(fits))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_patches_are_read() {
        let ours = "*** Begin Patch\n*** Update File: a.rs\n@@ fn two() {\n-    1\n+    2\n*** Add File: b\n+new\n\
                    *** Delete File: c\n*** End Patch\n";
        let diff = "diff --git a/a.rs b/a.rs\nindex 1..2 100644\n--- a/a.rs\n+++ b/a.rs\n@@ -4,1 +4,1 @@ fn two() {\n-    1\n+    2\n\
                    --- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+new\n--- a/c\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n";
        let hunk = |anchor: Option<&str>| Hunk {
            anchor: anchor.map(str::to_owned),
            old: vec!["    1".to_owned()],
            new: vec!["    2".to_owned()],
        };
        let expected = |anchor| {
            vec![
                Change::Update { path: "a.rs".to_owned(), to: None, hunks: vec![hunk(anchor)] },
                Change::Add { path: "b".to_owned(), content: "new\n".to_owned() },
                Change::Delete { path: "c".to_owned() },
            ]
        };
        assert_eq!(parse(ours).unwrap(), expected(Some("fn two() {")));
        assert_eq!(parse(diff).unwrap(), expected(None));
        for wrong in ["", "hello", "*** Update File: a\n@@\n?", "*** Add File: a\nb"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn hunks_are_found_by_their_lines_and_keep_line_ends() {
        let text = "fn one() {\n    1\n}\nfn two() {\n    1\n}\n";
        let change = |patch: &str| match parse(patch).unwrap().pop() {
            Some(Change::Update { hunks, .. }) => hunks,
            other => panic!("{other:?}"),
        };
        let hunks = change("*** Update File: a\n@@ fn two() {\n-    1\n+    2\n");
        assert_eq!(apply(text, &hunks).unwrap(), "fn one() {\n    1\n}\nfn two() {\n    2\n}\n");
        let crlf = text.replace('\n', "\r\n");
        assert_eq!(apply(&crlf, &hunks).unwrap(), "fn one() {\r\n    1\r\n}\r\nfn two() {\r\n    2\r\n}\r\n");
        let hunks = change("*** Update File: a\n@@\n fn two() {\n-    3\n+    2\n");
        let (number, hint) = apply(text, &hunks).unwrap_err();
        assert!(number == 1 && hint.contains("fn two() {"), "{hint}");
        let hunks = change("*** Update File: a\n+last\n");
        assert!(apply(text, &hunks).unwrap().ends_with("}\nlast\n"));
    }
}
