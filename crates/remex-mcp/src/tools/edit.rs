//! Edits of text files: exact pieces, which all fit or change nothing.
//!
//! Start at [`apply`], which is pure.

use std::path::Path;

use remex_client::fs::{ContentHash, Fs, IfMatch};
use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::{
    Tools,
    files::{changed, has_changed, if_match, written},
};
use crate::answer::{Answer, ToolError};

/// The longest file that can be edited, in bytes.
const MAX_EDITED: u64 = 16 << 20;

/// How many lines are compared to find one that is like what was looked for.
const MAX_COMPARED: usize = 20_000;

/// How much of a line is shown.
const MAX_SHOWN: usize = 200;

/// The parameters of `edit_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EditFile {
    path: String,
    environment: Option<String>,
    edits: Vec<Edit>,
    if_match: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct Edit {
    /// The exact text, without line numbers; it must occur once.
    old: String,
    new: String,
    /// Replace every occurrence.
    #[serde(default)]
    all: bool,
}

/// The text of a file, and the hash of its content.
pub(super) struct Text {
    pub(super) text: String,
    pub(super) hash: ContentHash,
}

impl Tools {
    pub(super) async fn edit_file(&self, params: EditFile) -> Answer {
        let (_, client, path) = self.at(params.environment.as_deref(), Some(&params.path)).await?;
        let fs = client.fs();
        let Text { text, hash } = read_text(&fs, &path).await?;
        if let Some(expected) = &params.if_match
            && if_match(expected)? != IfMatch::Content(hash)
        {
            return Err(has_changed(&path));
        }
        let edited = apply(&text, &params.edits)?;
        let done = fs.write(&path, &edited.text).if_match(IfMatch::Content(hash)).atomic().await;
        done.map_err(|error| changed(&error, &path))?;
        let answer = written(&path, &edited.text, edited.replacements);
        if !edited.has_converted {
            return Ok(answer);
        }
        Ok(answer.with_note(if is_mixed(&text) { MIXED } else { CONVERTED }))
    }
}

/// The note after the line ends of an edit were converted.
const CONVERTED: &str = "[the lines of the file end with CRLF, and so do those that were put in]";

/// The note if the file has line ends of both kinds.
const MIXED: &str = "[the line ends of the file are mixed; those that were put in are as at their place]";

/// Reads a text file that can be edited.
pub(super) async fn read_text(fs: &Fs, path: &Path) -> Result<Text, ToolError> {
    let failed = |error: remex_client::Error| ToolError::of_file(&error, path);
    let size = fs.metadata(path).await.map_err(failed)?.size;
    if size > MAX_EDITED {
        return Err(ToolError::new(format!("`{}` is too large to edit: {size} bytes", path.display()))
            .with_hint("use a command such as `sed -i`"));
    }
    let content = fs.read(path).await.map_err(failed)?;
    let hash = ContentHash(Sha256::digest(&content).into());
    let text = String::from_utf8(content.to_vec()).map_err(|_| {
        ToolError::new(format!("`{}` is not UTF-8", path.display()))
            .with_hint("edit it with a command such as `perl -pi -e`")
    })?;
    Ok(Text { text, hash })
}

#[derive(Debug)]
struct Edited {
    text: String,
    replacements: usize,
    /// Whether line ends were made those of the file.
    has_converted: bool,
}

/// Applies all edits to a text, in order.
fn apply(text: &str, edits: &[Edit]) -> Result<Edited, ToolError> {
    if edits.is_empty() {
        return Err(ToolError::new("there are no edits").with_hint("give at least one in `edits`"));
    }
    let mut edited = Edited { text: text.to_owned(), replacements: 0, has_converted: false };
    for (number, edit) in (1..).zip(edits) {
        let refused = |why: String, hint: String| {
            ToolError::new(format!("edit {number} cannot be made: {why}; nothing was changed"))
                .with_hint(hint)
        };
        if edit.old.is_empty() {
            return Err(refused(
                "its `old` is empty".to_owned(),
                "use `write_file` for a whole file".to_owned(),
            ));
        }
        if edit.old == edit.new {
            return Err(refused(
                "its `old` and `new` are the same, so it changes nothing".to_owned(),
                "leave it out if the file is as it should be".to_owned(),
            ));
        }
        let (mut old, mut new) = (edit.old.clone(), edit.new.clone());
        let mut ends_as_place = false;
        let mut count = edited.text.matches(&old).count();
        if count == 0 && edited.text.contains("\r\n") && !old.contains('\r') {
            (old, new) = (with_crlf(&old), with_crlf(&new));
            count = edited.text.matches(&old).count();
            edited.has_converted |= count > 0;
        } else if edited.text.contains("\r\n") && !new.contains('\r') && new.contains('\n') {
            ends_as_place = true;
            edited.has_converted = true;
        }
        match count {
            0 => {
                let hint = near(&edited.text, &edit.old);
                return Err(refused("its `old` text does not occur in the file".to_owned(), hint));
            }
            1 => {}
            _ if edit.all => {}
            _ => {
                let lines: Vec<_> = edited
                    .text
                    .match_indices(&old)
                    .take(10)
                    .map(|(at, _)| (edited.text[..at].matches('\n').count() + 1).to_string())
                    .collect();
                return Err(refused(
                    format!(
                        "its `old` text occurs more than once, {count} times: at lines {}",
                        lines.join(", ")
                    ),
                    "give enough lines around it, or set `all`".to_owned(),
                ));
            }
        }
        let crlf = if ends_as_place { with_crlf(&new) } else { new.clone() };
        let len = (edited.text.len() - count * old.len()).saturating_add(count.saturating_mul(crlf.len()));
        if len as u64 > MAX_EDITED {
            return Err(refused(
                format!("the file would have {len} bytes"),
                "use a command such as `sed -i`".to_owned(),
            ));
        }
        let (mut replaced, mut from) = (String::new(), 0);
        for (at, _) in edited.text.match_indices(&old) {
            replaced.push_str(&edited.text[from..at]);
            replaced.push_str(if ends_with_crlf(&edited.text, at) { &crlf } else { &new });
            from = at + old.len();
        }
        replaced.push_str(&edited.text[from..]);
        edited.text = replaced;
        edited.replacements += count;
    }
    if edited.text == text {
        return Err(ToolError::new("the edits together change nothing; nothing was written")
            .with_hint("leave them out if the file is as it should be"));
    }
    Ok(edited)
}

/// Returns whether the line at a position ends with CRLF; of the last line, whether the one before it does.
fn ends_with_crlf(text: &str, at: usize) -> bool {
    match text[at..].find('\n') {
        Some(end) => text[..at + end].ends_with('\r'),
        None => text[..at].rfind('\n').is_some_and(|end| text[..end].ends_with('\r')),
    }
}

fn is_mixed(text: &str) -> bool {
    text.contains("\r\n") && text.matches('\n').count() > text.matches("\r\n").count()
}

fn with_crlf(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\n', "\r\n")
}

/// Describes text similar to the old text of an edit: the same lines with other white space, or the most similar line.
pub(super) fn near(text: &str, old: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let wanted: Vec<&str> = old.lines().map(str::trim).skip_while(|line| line.is_empty()).collect();
    let shown = |from: usize, count: usize| {
        let lines = lines.iter().enumerate().skip(from).take(count.min(20));
        lines.map(|(index, line)| format!("\n{:>6}\t{}", index + 1, cut(line))).collect::<String>()
    };
    let Some(first) = wanted.first() else {
        return "give text that is not only white space".to_owned();
    };
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let squeezed_wanted: Vec<_> = wanted.iter().map(|line| squeezed(line)).collect();
    let is_same = |at: usize| {
        lines[at..].len() >= wanted.len()
            && lines[at..].iter().zip(&squeezed_wanted).all(|(line, wanted)| squeezed(line) == *wanted)
    };
    let compared = lines.len().min(MAX_COMPARED);
    if let Some(at) = (0..compared).find(|at| is_same(*at)) {
        let there = shown(at, wanted.len());
        return format!("these lines differ only in white space (a tab follows each number):{there}");
    }
    let similarity = |line: &str| strsim::sorensen_dice(cut(line.trim()), cut(first));
    let best =
        (0..compared).map(|at| (similarity(lines[at]), at)).max_by(|one, other| one.0.total_cmp(&other.0));
    match best {
        Some((likeness, at)) if likeness > 0.5 => {
            format!("the most similar lines are:{}", shown(at, wanted.len().max(1)))
        }
        _ => "read the file again with `read_file`; nothing in it is similar".to_owned(),
    }
}

fn cut(line: &str) -> &str {
    let end = line.char_indices().nth(MAX_SHOWN).map_or(line.len(), |(at, _)| at);
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(old: &str, new: &str) -> Edit {
        Edit { old: old.to_owned(), new: new.to_owned(), all: false }
    }

    #[test]
    fn line_ends_stay_those_of_the_file() {
        let edited = apply("one\r\ntwo\r\nthree\r\n", &[edit("one\ntwo\n", "1\n2\n")]).unwrap();
        assert_eq!((edited.text.as_str(), edited.has_converted), ("1\r\n2\r\nthree\r\n", true));
        let edited = apply("one\r\ntwo\r\n", &[edit("two", "2\n3")]).unwrap();
        assert_eq!(edited.text, "one\r\n2\r\n3\r\n");
        let edited = apply("one\r\ntwo\nthree\n", &[edit("two", "2\n3"), edit("one", "0\n1")]).unwrap();
        assert_eq!(edited.text, "0\r\n1\r\n2\n3\nthree\n");
        assert!(is_mixed(&edited.text) && !is_mixed("a\r\nb\r\n"));
    }

    #[test]
    fn similar_text_is_shown() {
        let text = "fn one() {\n\tlet a = 1;\n}\nfn two() {}\n";
        assert!(near(text, "fn one() {\n    let a = 1;\n}").contains("white space"), "{}", near(text, "x"));
        assert!(near(text, "let a = 2;").ends_with("     2\t\tlet a = 1;"), "{}", near(text, "let a = 2;"));
        assert!(near(text, "unrelated words").contains("nothing in it is similar"));
    }

    #[test]
    fn edits_without_effect_are_reported() {
        for edits in [vec![edit("a", "a")], vec![edit("a", "b"), edit("b", "a")]] {
            let error = apply("a\n", &edits).unwrap_err().to_string();
            assert!(error.contains("change"), "{error}");
        }
    }
}
