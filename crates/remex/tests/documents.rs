//! What the documents and comments name must be there: files, functions, types, constants with their values, links and
//! sections. And no page is longer than one can read at once.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod code_index;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::LazyLock,
};

use code_index::{Index, is_identifier, list, root, value_of};

static INDEX: LazyLock<Index> = LazyLock::new(Index::new);

/// Pages with a limit on their size, in bytes.
const PAGE: usize = 15 * 1024;
const GUIDE: usize = 20 * 1024;

/// The pages for people who work on the code: every name in them is checked.
fn design_pages() -> impl Iterator<Item = &'static str> {
    let is_design = |file: &&str| {
        matches!(*file, "ARCHITECTURE.md" | "CONTRIBUTING.md") || file.starts_with("docs/design/")
    };
    INDEX.documents().filter(is_design)
}

#[test]
fn names_in_the_design_documents_exist_in_the_code() {
    let index = &*INDEX;
    let mut missing = Vec::new();
    for page in design_pages() {
        let text = read(page);
        let in_prose = prose(&text).flat_map(|(number, line)| spans(line).map(move |span| (number, span)));
        // In blocks, only paths of items are recognised as names.
        let words = blocks(&text).flat_map(|(number, line)| line.split(' ').map(move |word| (number, word)));
        for (number, span) in in_prose.chain(words.filter(|(_, word)| word.contains("::"))) {
            if let Some(why) = index.missing(span) {
                missing.push(format!("{page}:{number}: `{span}`: {why}"));
            }
        }
    }
    report("names in documents that the code does not have", &missing);
}

#[test]
fn values_in_the_design_documents_are_those_of_the_constants() {
    let index = &*INDEX;
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in design_pages() {
        for (number, line) in prose(&read(page)) {
            for (name, value) in valued(line) {
                checked += 1;
                if let Err(actual) = index.check_value(name, value) {
                    wrong.push(format!("{page}:{number}: `{name}` is not {value} but {actual}"));
                }
            }
        }
    }
    assert!(checked > 40, "only {checked} values were found");
    report("values in documents that the constants do not have", &wrong);
}

#[test]
fn names_in_comments_exist_in_the_code() {
    let index = &*INDEX;
    let mut missing = Vec::new();
    for file in index.sources() {
        let text = read(file);
        for (number, line) in (1..).zip(text.lines()) {
            let Some((_, comment)) = line.split_once("//") else { continue };
            for span in spans(comment) {
                if let Some(why) = index.missing_in_comment(span) {
                    missing.push(format!("{file}:{number}: `{span}`: {why}"));
                }
            }
            for (name, value) in valued(comment) {
                if let Err(actual) = index.check_value(name, value) {
                    missing.push(format!("{file}:{number}: `{name}` is not {value} but {actual}"));
                }
            }
        }
    }
    report("names in comments that the code does not have", &missing);
}

#[test]
fn links_between_documents_resolve() {
    let index = &*INDEX;
    let mut anchors = BTreeMap::new();
    for page in index.documents() {
        anchors.insert(page.to_owned(), anchors_of(&read(page)));
    }
    let mut broken = Vec::new();
    for page in index.documents() {
        for (number, line) in prose(&read(page)) {
            for target in links(line) {
                let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
                let file = if path.is_empty() { page.to_owned() } else { joined(page, path) };
                if !index.exists(&file) {
                    broken.push(format!("{page}:{number}: `{target}`: no file `{file}`"));
                } else if !anchor.is_empty()
                    && !anchors.get(&file).is_some_and(|known| known.contains(anchor))
                {
                    broken.push(format!("{page}:{number}: `{target}`: `{file}` has no heading `#{anchor}`"));
                }
            }
        }
    }
    report("links that lead nowhere", &broken);
}

#[test]
fn referenced_sections_of_the_protocol_exist() {
    let index = &*INDEX;
    let protocol = read("PROTOCOL.md");
    let numbers: Vec<_> = prose(&protocol)
        .filter(|(_, line)| line.starts_with("##"))
        .filter_map(|(_, line)| line.trim_start_matches(['#', ' ']).split_once(' '))
        .map(|(number, _)| number.trim_end_matches('.').to_owned())
        .filter(|number| number.starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    let mut expected = numbers.clone();
    renumber(&mut expected);
    assert_eq!(numbers, expected, "the sections of PROTOCOL.md are not numbered one after the other");
    let mut missing = Vec::new();
    for file in index.texts().filter(|file| *file != "CHANGELOG.md") {
        for (number, line) in (1..).zip(read(file).lines()) {
            for section in sections(line, file == "PROTOCOL.md")
                .filter(|section| !numbers.iter().any(|known| known == section))
            {
                missing.push(format!("{file}:{number}: PROTOCOL.md has no section {section}"));
            }
        }
    }
    report("sections of PROTOCOL.md that do not exist", &missing);
}

#[test]
fn pages_are_short() {
    let index = &*INDEX;
    let mut long = Vec::new();
    for page in index.documents() {
        let limit = match page {
            "ARCHITECTURE.md" => PAGE,
            "CLI.md" => GUIDE,
            page if page.starts_with("docs/design/") => PAGE,
            _ => continue,
        };
        let size = read(page).len();
        if size > limit {
            long.push(format!("{page}: {size} bytes, {} more than {limit}", size - limit));
        }
    }
    report("pages that are too long: divide them by subject", &long);
}

#[test]
fn obsolete_names_are_detected() {
    let index = &*INDEX;
    for gone in [
        "gone~gone.rs",
        "Index::gone~gone",
        "gone~gone()",
        "Gone~Gone",
        "GONE_~GONE",
        "crates/gone-~gone/src",
        "remex_server::gone_~gone",
    ] {
        // Examples in this file would count as occurrences of the names.
        let gone = gone.replace('~', "");
        assert!(index.missing(&gone).is_some(), "`{gone}` is not noticed");
    }
    for there in [
        "documents.rs",
        "Index::missing",
        "value_of()",
        "Index",
        "PAGE",
        "crates/remex/tests",
        "process/start",
        "remex_server::Server",
        "std::path",
        "--listen",
    ] {
        assert_eq!(index.missing(there), None, "`{there}`");
    }
    assert!(index.missing_in_comment("gone.rs").is_some());
    assert!(index.missing_in_comment("Index::gone").is_some());
    assert_eq!(index.check_value("PAGE", "15 KiB"), Ok(()));
    assert!(index.check_value("PAGE", "16 KiB").is_err());
}

#[test]
fn code_spans_of_a_line_are_parsed() {
    assert_eq!(spans("a `b` and `c::d`, then `e").collect::<Vec<_>>(), ["b", "c::d"]);
    assert_eq!(links("[a](b.md#c) `[x](y)` [d](#e) [f](https://g)").collect::<Vec<_>>(), ["b.md#c", "#e"]);
    assert_eq!(
        valued("`FLOOR`, 64 KiB, and `WAIT` (50 ms) or `A`").collect::<Vec<_>>(),
        [("FLOOR", "64 KiB"), ("WAIT", "50 ms")]
    );
    assert_eq!(
        sections("see [PROTOCOL.md 4.2](x), section 18.1 of PROTOCOL.md", false).collect::<Vec<_>>(),
        ["4.2", "18.1"]
    );
    assert_eq!(sections("see section 6.2, and section A", true).collect::<Vec<_>>(), ["6.2"]);
    assert!(anchors_of("# A `b`-C, d\n## A `b`-C, d\n<a id=\"x\"></a>").iter().eq([
        "a-b-c-d",
        "a-b-c-d-1",
        "x"
    ]));
    assert_eq!(joined("docs/design/a.md", "../../B.md"), "B.md");
    assert_eq!(value_of("Duration::from_millis(50)"), value_of("50 ms"));
    assert_eq!(value_of("64 * 1024"), value_of("64 KiB"));
}

/// Fails with all findings, if there are any.
fn report(what: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{} {what}:\n{}", findings.len(), findings.join("\n"));
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// Returns the lines of a page outside of blocks of code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    lines(text).filter(|(_, _, is_code)| !is_code).map(|(number, line, _)| (number, line))
}

/// Returns the lines of the blocks of code of a page, with their numbers.
fn blocks(text: &str) -> impl Iterator<Item = (usize, &str)> {
    lines(text).filter(|(_, _, is_code)| *is_code).map(|(number, line, _)| (number, line))
}

/// Returns the lines of a page, except for the fences of blocks, and whether each is in a block.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str, bool)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_fence).then_some((number, line, is_code))
    })
}

/// Returns what is between back-ticks in a line.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    let parts: Vec<_> = line.split('`').collect();
    let closed = parts.len() - 1;
    parts.into_iter().take(closed).skip(1).step_by(2)
}

/// Returns the targets of links to other pages in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let outside = line.split('`').step_by(2);
    let targets =
        outside.flat_map(|text| text.split("](").skip(1)).filter_map(|rest| Some(rest.split_once(')')?.0));
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
}

/// Returns the constants of a line whose values follow, in parentheses or behind a comma.
fn valued(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts: Vec<_> = line.split('`').collect();
    let pairs = (1..parts.len().saturating_sub(1)).step_by(2).map(move |at| (parts[at], parts[at + 1]));
    pairs.filter_map(|(name, rest)| {
        let is_constant = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        let rest = rest.strip_prefix(" (").or_else(|| rest.strip_prefix(", "))?;
        let value = rest.split([')', ';']).next()?.split(", ").next()?.trim_end_matches(['.', ',']);
        (is_constant && value_of(value).is_some()).then_some((name, value))
    })
}

/// Returns the numbers of the sections of the protocol that a line refers to, in the protocol itself or elsewhere.
fn sections(line: &str, is_protocol: bool) -> impl Iterator<Item = &str> {
    let number = |text: &'_ str| text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let after = line.split("PROTOCOL.md ").skip(1).map(move |rest| &rest[..number(rest)]);
    let before = line.split("ection ").skip(1).filter_map(move |rest| {
        let section = &rest[..number(rest)];
        (is_protocol || rest[section.len()..].starts_with(" of PROTOCOL.md")).then_some(section)
    });
    after.chain(before).map(|section| section.trim_end_matches('.')).filter(|section| !section.is_empty())
}

/// Numbers sections one after the other, each at the depth that it has.
fn renumber(numbers: &mut [String]) {
    let mut last: Vec<u32> = Vec::new();
    for number in numbers {
        let depth = number.split('.').count();
        last.resize(depth, 0);
        *last.last_mut().unwrap() += 1;
        let parts: Vec<_> = last.iter().map(u32::to_string).collect();
        *number = parts.join(".");
    }
}

/// Returns the anchors of a page: those of its headings, as GitHub makes them, and those that it sets.
fn anchors_of(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        if let Some((_, rest)) = line.split_once("<a id=\"") {
            anchors.insert(rest.split('"').next().unwrap().to_owned());
        }
        if !line.starts_with('#') {
            continue;
        }
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let same = (1..).map(|number| format!("{anchor}-{number}"));
        let free = [anchor.clone()].into_iter().chain(same).find(|name| !anchors.contains(name));
        anchors.extend(free);
    }
    anchors
}

/// Returns the path of a link from the root of the project.
fn joined(page: &str, path: &str) -> String {
    let mut parts: Vec<_> = page.split('/').collect();
    parts.pop();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn the_index_contains_members_of_a_type() {
    let index = &*INDEX;
    assert!(list("crates/remex/tests").iter().any(|file| file == "crates/remex/tests/documents.rs"));
    assert!(is_identifier("a_B1") && !is_identifier("1a") && !is_identifier(""));
    assert!(index.exists("crates/remex/tests"));
}
