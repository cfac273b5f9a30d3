//! Every example of the help texts, the man pages, README.md, CLI.md and the guides, run as it stands.
//!
//! [`table`] says of each how it is run and what must be seen; an example without an entry fails.

mod scene;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Mutex,
    thread,
};

use crate::{
    commands::{Commands, UNBROKEN, help},
    generated::page,
    home::Home,
};
use scene::Scene;
use table::{ELSEWHERE, EXAMPLES, How};

/// How many examples are run at once; most of them wait for others most of the time.
const AT_ONCE: usize = 4;

const DOCUMENTS: [&str; 7] = [
    "README.md",
    "CLI.md",
    "docs/agents.md",
    "docs/environments.md",
    "docs/files.md",
    "docs/from-ssh-and-tmux.md",
    "docs/serve.md",
];

#[test]
fn documented_examples_work_verbatim() {
    let examples = all_examples();
    let table: BTreeMap<_, _> = EXAMPLES.iter().map(|(line, how)| (*line, how)).collect();
    let missing: Vec<_> = examples.iter().filter(|line| !table.contains_key(line.as_str())).collect();
    assert!(
        missing.is_empty(),
        "nobody says how to run {missing:#?}; add them to EXAMPLES in tests/cli/examples/table.rs, with what must be seen"
    );
    let stale: Vec<_> = table.keys().filter(|line| !examples.contains(**line)).collect();
    assert!(stale.is_empty(), "there are no such examples any more: {stale:#?}; remove them from EXAMPLES");

    let waiting = Mutex::new(examples.iter());
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(line) = { waiting.lock().unwrap().next() } {
                    if let How::Elsewhere(why) = table[line.as_str()] {
                        assert!(!why.is_empty(), "nobody says why `{line}` is not run here");
                        continue;
                    }
                    if let Err(why) = Scene::new(line).play(line, table[line.as_str()]) {
                        failed.lock().unwrap().push(format!("`{line}`: {why}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "examples that do not work:\n{}", failed.join("\n"));
}

#[test]
fn every_command_has_examples_and_its_man_page_has_them_too() {
    let home = Home::new();
    assert_eq!(home.say(&["man", "--dir", "pages"]).code, Some(0));
    for words in &Commands::of(&home).all {
        let examples = examples_of(&help(&home, words, UNBROKEN));
        let page = fs::read_to_string(home.path("pages").join(page(words))).unwrap();
        let page = page.replace("\\-", "-").replace("\\*(Aq", "'").replace("\\fB", "").replace("\\fR", "");
        let page = page.replace("\\\\", "\\").replace("\\&", "");
        for line in &examples {
            assert!(
                page.lines().any(|found| found == line),
                "the man page of {words:?} has no `{line}`:\n{page}"
            );
        }
    }
}

#[test]
fn every_untested_line_of_the_documents_is_listed() {
    for (document, line) in documents() {
        if !is_ours(&line) {
            let known = ELSEWHERE.iter().any(|(beginning, _)| line.starts_with(beginning));
            assert!(
                known,
                "{document}: `{line}` is run by nobody; add it to ELSEWHERE in tests/cli/examples/table.rs"
            );
        }
    }
}

fn all_examples() -> BTreeSet<String> {
    let home = Home::new();
    let mut texts = vec![help(&home, &[], UNBROKEN)];
    texts.extend(Commands::of(&home).all.iter().map(|words| help(&home, words, UNBROKEN)));
    let mut examples: BTreeSet<_> = texts.iter().flat_map(|text| examples_of(text)).collect();
    examples.extend(documents().into_iter().map(|(_, line)| line).filter(|line| is_ours(line)));
    examples
}

fn is_ours(line: &str) -> bool {
    line.starts_with("remex ")
}

/// Returns the lines to type in a help text.
fn examples_of(help: &str) -> Vec<String> {
    let below =
        help.lines().skip_while(|line| *line != "Examples:").skip(1).take_while(|line| !line.is_empty());
    let typed = below.filter_map(|line| line.strip_prefix("    "));
    typed.map(str::to_owned).collect()
}

/// Returns the lines of all shell blocks in our documents; what is continued is one line.
fn documents() -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    for document in DOCUMENTS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
        let text = fs::read_to_string(path).unwrap();
        let mut is_shell = false;
        let mut continues = false;
        for line in text.lines() {
            if line.starts_with("```") {
                (is_shell, continues) = (line == "```sh", false);
            } else if is_shell && !line.is_empty() {
                if !continues && !line.starts_with(' ') {
                    lines.push((document, line.to_owned()));
                }
                continues = line.ends_with('\\');
            }
        }
    }
    lines
}
