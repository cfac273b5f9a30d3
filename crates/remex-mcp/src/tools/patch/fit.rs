//! Where the hunks of a patch fit into a text.
//!
//! A hunk that fits at several places, and does not say which, is refused. Start at [`apply`], which is pure.

use super::parse::{Hunk, Mark};
use crate::tools::edit::near;

const BOM: char = '\u{feff}';

/// A line of the file, and what ends it.
#[derive(Debug, Clone)]
struct Line {
    text: String,
    end: &'static str,
    is_new: bool,
}

/// Why a hunk cannot be applied.
#[derive(Debug)]
pub(super) struct Misfit {
    /// The number of the hunk, from 1.
    pub(super) number: usize,
    pub(super) why: &'static str,
    pub(super) hint: String,
}

/// Applies hunks in order. Lines that they do not change keep what ends them.
pub(super) fn apply(text: &str, hunks: &[Hunk]) -> Result<String, Misfit> {
    let (bom, body) = match text.strip_prefix(BOM) {
        Some(body) => ("\u{feff}", body),
        None => ("", text),
    };
    let mut lines: Vec<Line> = body.split_inclusive('\n').map(line).collect();
    let default_end = lines.first().map_or("\n", |line| if line.end.is_empty() { "\n" } else { line.end });
    let ends_with_newline = body.is_empty() || body.ends_with('\n');
    // Where the last hunk ended, and by how much later lines have moved.
    let (mut from, mut moved) = (0, 0_isize);
    let mut last_newline = None;
    for (number, hunk) in (1..).zip(hunks) {
        let misfit = |(why, hint)| Misfit { number, why, hint };
        let mut marked = hunk.lines.as_slice();
        let mut found = place(&lines, hunk, &old(marked), from, moved);
        // Empty lines after a hunk may be none of its lines.
        while found.is_err()
            && let Some(((Mark::Keep, text), rest)) = marked.split_last()
            && text.is_empty()
            && !old(rest).is_empty()
        {
            marked = rest;
            if let Ok(at) = place(&lines, hunk, &old(marked), from, moved) {
                found = Ok(at);
            }
        }
        let at = found.map_err(|misfits| misfit(misfits.explain(body, hunk)))?;
        if hunk.lines.is_empty() {
            // An anchor alone: what follows it comes after.
            from = at;
            continue;
        }
        let (removed, replacement) = replace(&lines, at, marked, default_end);
        if let Some(start) = hunk.start {
            moved = at as isize - start.index() as isize;
        }
        moved += replacement.len() as isize - removed as isize;
        from = at + replacement.len();
        lines.splice(at..at + removed, replacement);
        if from == lines.len() && hunk.ends_with_newline.is_some() {
            last_newline = hunk.ends_with_newline;
        }
    }
    if let Some((last, before)) = lines.split_last_mut() {
        for line in before {
            if line.end.is_empty() {
                line.end = default_end;
            }
        }
        let has_newline =
            last_newline.unwrap_or(if last.is_new { ends_with_newline } else { !last.end.is_empty() });
        if !has_newline {
            last.end = "";
        } else if last.end.is_empty() {
            last.end = default_end;
        }
    }
    let mut patched = bom.to_owned();
    for line in &lines {
        patched.push_str(&line.text);
        patched.push_str(line.end);
    }
    Ok(patched)
}

fn line(line: &str) -> Line {
    let (text, end) = if let Some(text) = line.strip_suffix("\r\n") {
        (text, "\r\n")
    } else if let Some(text) = line.strip_suffix('\n') {
        (text, "\n")
    } else {
        (line, "")
    };
    Line { text: text.to_owned(), end, is_new: false }
}

/// Returns the lines that a hunk expects.
fn old(marked: &[(Mark, String)]) -> Vec<&str> {
    marked.iter().filter(|(mark, _)| *mark != Mark::Add).map(|(_, text)| text.as_str()).collect()
}

/// Returns how many lines are replaced at a position, and the new ones. Kept lines are those of the file.
fn replace(
    lines: &[Line],
    at: usize,
    marked: &[(Mark, String)],
    default_end: &'static str,
) -> (usize, Vec<Line>) {
    let (mut next, mut replacement) = (at, Vec::new());
    let before = at.checked_sub(1).and_then(|before| lines.get(before));
    let mut end = before.or(lines.get(at)).map_or(default_end, |line| line.end);
    for (mark, text) in marked {
        if *mark == Mark::Add {
            let end = if end.is_empty() { default_end } else { end };
            replacement.push(Line { text: text.clone(), end, is_new: true });
            continue;
        }
        let line = &lines[next];
        end = line.end;
        next += 1;
        if *mark == Mark::Keep {
            replacement.push(line.clone());
        }
    }
    (next - at, replacement)
}

/// Why a hunk does not match.
enum MismatchReason {
    Anchor,
    Several(Vec<usize>),
    None,
    Unplaced,
}

impl MismatchReason {
    fn explain(self, text: &str, hunk: &Hunk) -> (&'static str, String) {
        match self {
            Self::Anchor => {
                let anchor = hunk.anchor.as_deref().unwrap_or_default();
                let hint = near(text, anchor);
                (
                    "its `@@` line is not found after the hunks before it",
                    format!("give a whole line of the file, or none; {hint}"),
                )
            }
            Self::Several(at) => {
                let at: Vec<_> = at.iter().take(10).map(|at| (at + 1).to_string()).collect();
                (
                    "it fits at several places",
                    format!(
                        "it fits at lines {}: give more lines around it, or `@@ LINE` with a line before it",
                        at.join(", ")
                    ),
                )
            }
            Self::None => {
                let old = old(&hunk.lines).join("\n");
                ("it does not fit after its `@@` line and the hunks before it", near(text, &old))
            }
            Self::Unplaced => (
                "it only adds lines, and does not say where",
                "give a line before them, `@@ -LINE,0 +LINE @@`, or `*** End of File` after them".to_owned(),
            ),
        }
    }
}

/// Finds the place of a hunk from a position on.
fn place(
    lines: &[Line],
    hunk: &Hunk,
    old: &[&str],
    from: usize,
    moved: isize,
) -> Result<usize, MismatchReason> {
    let anchors = match &hunk.anchor {
        None => Vec::new(),
        Some(anchor) => {
            let is_anchor = |at: &usize| lines[*at].text.trim() == anchor.trim();
            let anchors: Vec<usize> = (from..lines.len()).filter(is_anchor).collect();
            if anchors.is_empty() {
                return Err(MismatchReason::Anchor);
            }
            anchors
        }
    };
    let from = anchors.first().copied().unwrap_or(from);
    let expected = hunk.start.and_then(|start| start.index().checked_add_signed(moved));
    if old.is_empty() {
        return match (anchors.as_slice(), hunk.start, expected) {
            (&[anchor], ..) if hunk.lines.is_empty() => Ok(anchor),
            _ if hunk.is_at_end || lines.is_empty() => Ok(lines.len()),
            (&[anchor], ..) => Ok(anchor + 1),
            (&[_, ..], ..) => Err(MismatchReason::Several(anchors)),
            (_, Some(start), Some(at)) if start.is_insertion && (from..=lines.len()).contains(&at) => Ok(at),
            (_, Some(_), _) => Err(MismatchReason::None),
            _ if hunk.lines.is_empty() => Ok(from),
            _ => Err(MismatchReason::Unplaced),
        };
    }
    let fits = fits(lines, old, from, hunk.is_at_end);
    match (fits.as_slice(), expected) {
        ([], _) => Err(MismatchReason::None),
        (&[at], _) => Ok(at),
        (_, Some(expected)) => {
            let distance = |at: &usize| at.abs_diff(expected);
            let nearest = fits.iter().map(distance).min().unwrap_or_default();
            let nearest: Vec<usize> = fits.into_iter().filter(|at| distance(at) == nearest).collect();
            if let &[at] = nearest.as_slice() { Ok(at) } else { Err(MismatchReason::Several(nearest)) }
        }
        (_, None) => {
            let inside: Vec<usize> = fits
                .iter()
                .copied()
                .filter(|at| anchors.iter().any(|anchor| (*anchor..block_end(lines, *anchor)).contains(at)))
                .collect();
            if let &[at] = inside.as_slice() { Ok(at) } else { Err(MismatchReason::Several(fits)) }
        }
    }
}

/// Returns all positions where lines are; exactly, or else without white space at their ends.
fn fits(lines: &[Line], wanted: &[&str], from: usize, is_at_end: bool) -> Vec<usize> {
    let Some(last) = lines.len().checked_sub(wanted.len()) else { return Vec::new() };
    let from = if is_at_end { from.max(last) } else { from };
    let all = |is_same: &dyn Fn(&str, &str) -> bool| -> Vec<usize> {
        let fits =
            |at: &usize| lines[*at..].iter().zip(wanted).all(|(line, wanted)| is_same(&line.text, wanted));
        (from..=last).filter(fits).collect()
    };
    let exact = all(&|line, wanted| line == wanted);
    if exact.is_empty() { all(&|line, wanted| line.trim_end() == wanted.trim_end()) } else { exact }
}

/// Returns where what is indented below a line ends.
fn block_end(lines: &[Line], anchor: usize) -> usize {
    let indentation = |line: &Line| line.text.len() - line.text.trim_start().len();
    let ends = |line: &Line| !line.text.trim().is_empty() && indentation(line) <= indentation(&lines[anchor]);
    lines[anchor + 1..].iter().position(ends).map_or(lines.len(), |at| anchor + 1 + at)
}

#[cfg(test)]
mod tests {
    use super::{super::parse::parse, *};

    fn patched(text: &str, hunks: &str) -> Result<String, String> {
        let patch = format!("*** Begin Patch\n*** Update File: a\n{hunks}\n*** End Patch\n");
        let changes = parse(&patch).unwrap_or_else(|error| panic!("{error}"));
        apply(text, &changes[0].hunks)
            .map_err(|misfit| format!("{} {}: {}", misfit.number, misfit.why, misfit.hint))
    }

    #[test]
    fn among_several_places_the_line_number_or_the_anchor_decides() {
        let text = "x\n1\nx\n2\nx\n3\nx\n";
        assert_eq!(patched(text, "@@ -5 +5 @@\n-x\n+y").unwrap(), "x\n1\nx\n2\ny\n3\nx\n");
        let two = "@@ -1 +1,3 @@\n-x\n+y\n+y\n+y\n@@ -5 +7 @@\n-x\n+z";
        assert_eq!(patched(text, two).unwrap(), "y\ny\ny\n1\nx\n2\nz\n3\nx\n");
        let why = patched(text, "@@\n-x\n+y").unwrap_err();
        assert!(why.starts_with("1 it fits at several places: it fits at lines 1, 3, 5, 7"), "{why}");
        let functions = "fn one() {\n    1\n}\nfn two() {\n    1\n}\nfn three() {\n    1\n}\n";
        let two = functions.replace("two() {\n    1", "two() {\n    2");
        assert_eq!(patched(functions, "@@ fn two() {\n-    1\n+    2").unwrap(), two);
        let why = patched(functions, "@@ fn four\n-    1\n+    2").unwrap_err();
        assert!(why.contains("`@@` line is not found"), "{why}");
        let why = patched(functions, "@@ fn three() {\n fn one() {\n+    2").unwrap_err();
        assert!(why.contains("does not fit"), "{why}");
        let why = patched("a\nb\n", "@@\n-b\n+c\n@@\n-a\n+d").unwrap_err();
        assert!(why.starts_with("2 it does not fit"), "{why}");
    }

    #[test]
    fn added_lines_are_inserted_where_the_patch_says() {
        let text = "1\n2\n3\n";
        assert_eq!(patched(text, "@@ -2,0 +3 @@\n+new").unwrap(), "1\n2\nnew\n3\n");
        assert_eq!(patched(text, "@@ -0,0 +1 @@\n+new").unwrap(), "new\n1\n2\n3\n");
        assert_eq!(patched(text, "@@ 1\n+new").unwrap(), "1\nnew\n2\n3\n");
        assert_eq!(patched(text, "+new\n*** End of File").unwrap(), "1\n2\n3\nnew\n");
        assert!(patched(text, "@@ -9,0 +10 @@\n+new").is_err());
        let why = patched(text, "+new").unwrap_err();
        assert!(why.contains("does not say where"), "{why}");
    }

    #[test]
    fn unchanged_lines_are_kept_verbatim() {
        assert_eq!(patched("a\r\nb\nc\nd\r\n", "@@\n-c\n+C").unwrap(), "a\r\nb\nC\nd\r\n");
        assert_eq!(patched("a\r\nb\nc\nd\r\n", "@@\n-a\n+A").unwrap(), "A\r\nb\nc\nd\r\n");
        assert_eq!(patched("a  \nb", "@@\n a\n-b\n+B").unwrap(), "a  \nB");
        assert_eq!(patched("a\nb", "@@\n-b").unwrap(), "a\n");
        assert_eq!(patched("a", "@@\n a\n+b").unwrap(), "a\nb");
        assert_eq!(patched("a\n", "@@\n-a\n+b\n\\ No newline at end of file").unwrap(), "b");
        assert_eq!(patched("\u{feff}a\nb\n", "@@\n-a\n+A").unwrap(), "\u{feff}A\nb\n");
        assert_eq!(patched("-- old\nx\n", "--- old\n+++ new").unwrap(), "++ new\nx\n");
    }
}
