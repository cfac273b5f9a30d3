//! The two kinds of patches: from `*** Begin Patch` to `*** End Patch`, and unified diffs.

use crate::answer::ToolError;

/// How many files a patch may change.
const MAX_FILES: usize = 200;

/// What a patch does to one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) path: String,
    pub(super) kind: Kind,
    /// Where the file is moved.
    pub(super) to: Option<String>,
    pub(super) executable: Option<bool>,
    pub(super) hunks: Vec<Hunk>,
    /// Whether it is of a unified diff, which has every line that it deletes.
    pub(super) is_diff: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Add,
    Delete,
    #[default]
    Update,
}

/// Lines to find, and what to put there.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hunk {
    /// A line that comes somewhere before, such as the head of a function.
    pub(super) anchor: Option<String>,
    pub(super) start: Option<Start>,
    /// Whether its last line is the last one of the file.
    pub(super) is_at_end: bool,
    /// Whether the last line ends with a line feed, if the patch says so.
    pub(super) ends_with_newline: Option<bool>,
    pub(super) lines: Vec<(Mark, String)>,
    /// How many old and new lines are still to come, if the patch says so.
    left: Option<(usize, usize)>,
}

/// The first line of a hunk in the original file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    line: usize,
    /// Whether it has no old lines, and goes after the line.
    pub(super) is_insertion: bool,
}

impl Start {
    /// Returns the position in the lines of the file.
    pub(super) fn index(self) -> usize {
        if self.is_insertion { self.line } else { self.line.saturating_sub(1) }
    }
}

/// What a line of a hunk is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Keep,
    Remove,
    Add,
}

/// Reads a patch of either kind.
pub(super) fn parse(patch: &str) -> Result<Vec<Change>, ToolError> {
    let lines: Vec<&str> = patch.lines().collect();
    let begin = lines.iter().position(|line| !line.trim().is_empty()).unwrap_or(0);
    let is_ours = lines.get(begin).is_some_and(|line| line.starts_with("*** "));
    let changes = if is_ours { ours(&lines, begin) } else { diff(&lines) };
    let changes = changes.map_err(|(index, hint)| {
        let line: String = lines.get(index).unwrap_or(&"").chars().take(100).collect();
        ToolError::new(format!("line {} of the patch is wrong: `{line}`; nothing was changed", index + 1))
            .with_hint(hint)
    })?;
    if changes.is_empty() || changes.len() > MAX_FILES {
        return Err(ToolError::new(format!("the patch changes {} files", changes.len())).with_hint(
            "begin with `*** Begin Patch` and `*** Update File: PATH`, or send a unified diff; at most 200 files",
        ));
    }
    let nothing = |change: &&Change| {
        change.kind == Kind::Update
            && change.to.is_none()
            && change.executable.is_none()
            && change.hunks.iter().all(|hunk| hunk.lines.is_empty())
    };
    if let Some(change) = changes.iter().find(nothing) {
        return Err(ToolError::new(format!(
            "the patch has no changes of `{}`; nothing was changed",
            change.path
        ))
        .with_hint("give hunks, or leave the file out"));
    }
    if changes.iter().any(|change| change.path.is_empty()) {
        return Err(ToolError::new("the patch does not name a file; nothing was changed")
            .with_hint("name it after `*** Update File: `, or with `--- a/PATH` and `+++ b/PATH`"));
    }
    Ok(changes)
}

/// The index of a line that is wrong, and a hint.
type Wrong = (usize, &'static str);

fn ours(lines: &[&str], begin: usize) -> Result<Vec<Change>, Wrong> {
    if !lines[begin].starts_with("*** Begin Patch") {
        return Err((begin, "begin with `*** Begin Patch`"));
    }
    let mut changes = Vec::<Change>::new();
    let mut is_complete = false;
    for (index, line) in lines.iter().enumerate().skip(begin + 1) {
        if is_complete {
            if line.trim().is_empty() {
                continue;
            }
            return Err((index, "send what follows `*** End Patch` as another patch"));
        }
        let mut begins = |prefix: &str, kind| {
            let path = line.strip_prefix(prefix).map(|path| path.trim().to_owned());
            path.map(|path| changes.push(Change { path, kind, ..Change::default() })).is_some()
        };
        if begins("*** Add File: ", Kind::Add)
            || begins("*** Delete File: ", Kind::Delete)
            || begins("*** Update File: ", Kind::Update)
        {
            continue;
        }
        let last = changes.last_mut();
        if line.starts_with("*** End Patch") {
            is_complete = true;
        } else if line.trim_end() == "*** End of File" {
            if let Some(hunk) = last.and_then(|change| change.hunks.last_mut()) {
                hunk.is_at_end = true;
            }
        } else if let Some(path) = line.strip_prefix("*** Move to: ") {
            match last {
                Some(change) if change.kind == Kind::Update => change.to = Some(path.trim().to_owned()),
                _ => return Err((index, "`*** Move to: ` follows `*** Update File: `")),
            }
        } else if line.starts_with("*** ") {
            return Err((
                index,
                "use `*** Update File: `, `*** Add File: `, `*** Delete File: ` or `*** Move to: `",
            ));
        } else {
            add(line, last).map_err(|hint| (index, hint))?;
        }
    }
    if !is_complete {
        return Err((
            lines.len().saturating_sub(1),
            "the patch is cut off after this line: end it with `*** End Patch`",
        ));
    }
    Ok(changes)
}

fn diff(lines: &[&str]) -> Result<Vec<Change>, Wrong> {
    let mut changes = Vec::<Change>::new();
    // Whether the last change has its head of `diff --git`, and no other one yet.
    let mut in_git_head = false;
    let mut index = 0;
    while let Some(line) = lines.get(index) {
        let wrong = |hint| (index, hint);
        let hunk = changes.last().and_then(|change| change.hunks.last());
        // In a hunk that is not over, `---` begins the removal of a line.
        let in_hunk = hunk.is_some_and(|hunk| hunk.left.is_some_and(|left| left != (0, 0)));
        let next = lines.get(index + 1).unwrap_or(&"");
        if let Some(paths) = line.strip_prefix("diff --git ") {
            let path = same_path(paths).unwrap_or_default().to_owned();
            changes.push(Change { path, is_diff: true, ..Change::default() });
            in_git_head = true;
        } else if line.starts_with("diff ") {
            in_git_head = false;
        } else if line.starts_with("Binary files ") || line.starts_with("GIT binary patch") {
            return Err(wrong("binary files cannot be patched: copy them, or leave them out"));
        } else if !in_hunk && line.starts_with("--- ") && next.starts_with("+++ ") {
            let (from, to) = (of_diff(&line[4..]).map_err(wrong)?, of_diff(&next[4..]).map_err(wrong)?);
            if !in_git_head {
                changes.push(Change { is_diff: true, ..Change::default() });
            }
            in_git_head = false;
            let Some(change) = changes.last_mut() else { break };
            match (from, to) {
                (None, None) => return Err(wrong("name a file")),
                (None, Some(path)) => (change.kind, change.path) = (Kind::Add, path),
                (Some(path), None) => (change.kind, change.path) = (Kind::Delete, path),
                (Some(from), Some(to)) => {
                    if from != to && change.to.as_ref() != Some(&to) {
                        return Err(wrong(
                            "`---` and `+++` name different files: name the one that is changed in both, or move it \
                             with `rename from` and `rename to`",
                        ));
                    }
                    change.path = from;
                }
            }
            index += 1;
        } else if let (true, Some(change)) = (in_git_head, changes.last_mut()) {
            git_head(line, change).map_err(wrong)?;
        } else {
            add(line, changes.last_mut()).map_err(wrong)?;
        }
        index += 1;
    }
    Ok(changes)
}

/// Reads a line between `diff --git` and the hunks.
fn git_head(line: &str, change: &mut Change) -> Result<(), &'static str> {
    let is_executable = |mode: &str| match mode.trim() {
        "100755" => Ok(true),
        "100644" | "100664" => Ok(false),
        _ => Err("only plain files can be patched: make links and submodules with a command"),
    };
    if let Some(mode) = line.strip_prefix("new file mode ") {
        change.kind = Kind::Add;
        change.executable = is_executable(mode)?.then_some(true);
    } else if let Some(mode) = line.strip_prefix("deleted file mode ") {
        is_executable(mode)?;
        change.kind = Kind::Delete;
    } else if let Some(mode) = line.strip_prefix("old mode ") {
        is_executable(mode)?;
    } else if let Some(mode) = line.strip_prefix("new mode ") {
        change.executable = Some(is_executable(mode)?);
    } else if let Some(path) = line.strip_prefix("rename from ") {
        change.path = unquoted(path)?.to_owned();
    } else if let Some(path) = line.strip_prefix("rename to ") {
        change.to = Some(unquoted(path)?.to_owned());
    } else if line.starts_with("copy from ") || line.starts_with("copy to ") {
        return Err("a patch cannot copy files: use `copy`, and patch the copy");
    } else if !["index ", "similarity index ", "dissimilarity index "]
        .iter()
        .any(|head| line.starts_with(head))
        && !line.trim().is_empty()
    {
        return Err(
            "this line of a git diff is not understood: leave it out, or give `---` and `+++` before hunks",
        );
    }
    Ok(())
}

/// Returns the path in `a/PATH b/PATH`, if it is the same.
fn same_path(paths: &str) -> Option<&str> {
    let (one, other) = paths.split_at_checked(paths.len() / 2)?;
    let (one, other) = (one.strip_prefix("a/")?, other.strip_prefix(" b/")?);
    (one == other).then_some(one)
}

fn unquoted(path: &str) -> Result<&str, &'static str> {
    let path = path.trim();
    if path.starts_with('"') { Err("write the path without quotes and escapes") } else { Ok(path) }
}

/// Returns the path in a line of a unified diff; `None` for no file.
fn of_diff(path: &str) -> Result<Option<String>, &'static str> {
    let path = unquoted(path.split('\t').next().unwrap_or(path))?;
    let path = path.strip_prefix("a/").or_else(|| path.strip_prefix("b/")).unwrap_or(path);
    Ok((path != "/dev/null").then(|| path.to_owned()))
}

/// Adds a line to the change of a file.
fn add(line: &str, change: Option<&mut Change>) -> Result<(), &'static str> {
    let Some(change) = change else {
        return if line.trim().is_empty() {
            Ok(())
        } else {
            Err("begin with `*** Begin Patch` and `*** Update File: PATH`, or with `--- a/PATH`")
        };
    };
    if let Some(rest) = line.strip_prefix("@@") {
        change.hunks.push(head(rest)?);
        return Ok(());
    }
    if line.is_empty() && change.kind != Kind::Update {
        return Ok(());
    }
    if change.kind == Kind::Delete && !change.is_diff {
        return Err("nothing follows `*** Delete File: PATH`");
    }
    if change.hunks.is_empty() {
        change.hunks.push(Hunk::default());
    }
    let Some(hunk) = change.hunks.last_mut() else { return Ok(()) };
    if line.starts_with('\\') {
        // `\ No newline at end of file`
        hunk.is_at_end = true;
        hunk.ends_with_newline = hunk.lines.last().map(|(mark, _)| *mark == Mark::Remove);
        return Ok(());
    }
    let (mark, text) = match line.split_at_checked(1) {
        None => (Mark::Keep, ""),
        Some((" ", text)) => (Mark::Keep, text),
        Some(("-", text)) => (Mark::Remove, text),
        Some(("+", text)) => (Mark::Add, text),
        _ => return Err("each line of a hunk begins with a space, `+` or `-`"),
    };
    if change.kind == Kind::Add && mark != Mark::Add {
        return Err("each line of a new file begins with `+`");
    }
    if change.kind == Kind::Delete && mark == Mark::Add {
        return Err("a file that is deleted gets no lines");
    }
    if let Some((old, new)) = &mut hunk.left {
        *old = old.saturating_sub(usize::from(mark != Mark::Add));
        *new = new.saturating_sub(usize::from(mark != Mark::Remove));
    }
    hunk.lines.push((mark, text.to_owned()));
    Ok(())
}

/// Reads what follows `@@`: the numbers of a unified diff, or a line that comes before.
fn head(rest: &str) -> Result<Hunk, &'static str> {
    let numbers = |range: &str| -> Option<(usize, usize)> {
        let (line, count) = range.split_once(',').unwrap_or((range, "1"));
        let number =
            |digits: &str| digits.parse::<u32>().ok().and_then(|number| usize::try_from(number).ok());
        Some((number(line)?, number(count)?))
    };
    let mut words = rest.split_whitespace();
    if let (Some(old), Some(new)) = (words.next(), words.next())
        && let (Some(old), Some(new)) = (old.strip_prefix('-'), new.strip_prefix('+'))
        && let (Some((line, old)), Some((_, new))) = (numbers(old), numbers(new))
    {
        // What follows the numbers is only for people.
        let start = Some(Start { line, is_insertion: old == 0 });
        return Ok(Hunk { start, left: Some((old, new)), ..Hunk::default() });
    }
    let anchor = rest.trim();
    if anchor == "@@" || anchor == "..." || anchor == "... @@" {
        return Ok(Hunk::default());
    }
    Ok(Hunk { anchor: (!anchor.is_empty()).then(|| anchor.to_owned()), ..Hunk::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kind, the path, the new path, the executable bit and the number of hunks.
    type Head = (Kind, String, Option<String>, Option<bool>, usize);

    fn heads(patch: &str) -> Vec<Head> {
        let changes = parse(patch).unwrap_or_else(|error| panic!("{error}"));
        let head =
            |change: Change| (change.kind, change.path, change.to, change.executable, change.hunks.len());
        changes.into_iter().map(head).collect()
    }

    #[test]
    fn both_patch_formats_are_parsed() {
        let ours = "*** Begin Patch\n*** Update File: a.rs\n@@ fn two() {\n-    1\n+    2\n*** Add File: b\n+new\n\
                    *** Delete File: c\n*** End Patch\n";
        let diff = "--- a/a.rs\n+++ b/a.rs\n@@ -4,1 +4,1 @@ fn two() {\n-    1\n+    2\n\
                    --- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+new\n--- a/c\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n";
        let head = |kind, path: &str, hunks| (kind, path.to_owned(), None, None, hunks);
        assert_eq!(
            heads(ours),
            [head(Kind::Update, "a.rs", 1), head(Kind::Add, "b", 1), head(Kind::Delete, "c", 0)]
        );
        assert_eq!(
            heads(diff),
            [head(Kind::Update, "a.rs", 1), head(Kind::Add, "b", 1), head(Kind::Delete, "c", 1)]
        );
    }

    #[test]
    fn git_headers_are_parsed() {
        let patch = "diff --git a/run b/run\nnew file mode 100755\nindex 0..1\n--- /dev/null\n+++ b/run\n@@ -0,0 +1 @@\n+x\n\
                     diff --git a/empty b/empty\nnew file mode 100644\nindex 0..0\n\
                     diff --git a/old b/old\ndeleted file mode 100644\nindex 0..0\n\
                     diff --git a/one b/two\nsimilarity index 100%\nrename from one\nrename to two\n\
                     diff --git a/m b/m\nold mode 100644\nnew mode 100755\n";
        let head = |kind, path: &str, to: Option<&str>, executable, hunks| {
            (kind, path.to_owned(), to.map(str::to_owned), executable, hunks)
        };
        assert_eq!(
            heads(patch),
            [
                head(Kind::Add, "run", None, Some(true), 1),
                head(Kind::Add, "empty", None, None, 0),
                head(Kind::Delete, "old", None, None, 0),
                head(Kind::Update, "one", Some("two"), None, 0),
                head(Kind::Update, "m", None, Some(true), 0),
            ]
        );
    }

    #[test]
    fn malformed_patches_are_refused() {
        for (wrong, why) in [
            ("", "changes 0 files"),
            ("hello", "begin with"),
            ("*** Update File: a\n@@\n-a\n", "begin with `*** Begin Patch`"),
            ("*** Begin Patch\n*** Update File: a\n@@\n?\n*** End Patch", "each line of a hunk"),
            ("*** Begin Patch\n*** Add File: a\nb\n*** End Patch", "each line of a hunk"),
            ("*** Begin Patch\n*** Update File: a\n@@\n-a\n+b\n", "cut off"),
            ("*** Begin Patch\n*** Update File: a\n*** End Patch\n", "no changes of `a`"),
            ("diff --git a/a b/a\nindex 1..2\nBinary files a/a and b/a differ\n", "binary files"),
            ("diff --git a/l b/l\nnew file mode 120000\n", "only plain files"),
            ("diff --git a/a b/a\ncopy from a\ncopy to b\n", "cannot copy"),
            ("--- \"a\\303\"\n+++ \"a\\303\"\n@@ -1 +1 @@\n-a\n+b\n", "without quotes"),
            ("--- a.orig\n+++ a\n@@ -1 +1 @@\n-a\n+b\n", "different files"),
        ] {
            let said = parse(wrong).unwrap_err().to_string();
            assert!(said.contains(why), "{wrong}: {said}");
        }
        // Until a hunk has all its lines, `---` removes one.
        assert_eq!(heads("--- a/a\n+++ b/a\n@@ -1 +1 @@\n--- old\n+++ new\n").len(), 1);
    }
}
