//! Every command there is, as the program itself lists them.

use crate::{
    home::{Home, said},
    support::InTime as _,
};

/// All commands, so that no test can forget one.
pub(crate) struct Commands {
    /// The words after `remex`: `run`, `env add`.
    pub(crate) all: Vec<Vec<String>>,
}

impl Commands {
    pub(crate) fn of(home: &Home) -> Self {
        let mut all = Vec::new();
        collect(home, &[], &mut all);
        assert!(all.len() > 15, "the help lists too few commands: {all:?}");
        Self { all }
    }
}

/// The width that help texts are written for.
pub(crate) const USUAL: u16 = 100;

/// A width at which no line is broken.
pub(crate) const UNBROKEN: u16 = 1000;

/// Returns the help of a command as it is printed for lines of that width.
pub(crate) fn help(home: &Home, words: &[String], columns: u16) -> String {
    let words = words.iter().map(String::as_str);
    let arguments: Vec<_> = std::iter::once("help").chain(words).collect();
    let mut command = home.remex(&arguments);
    let said = said(&command.env("COLUMNS", columns.to_string()).finished());
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{arguments:?}");
    said.out
}

fn collect(home: &Home, parent: &[String], all: &mut Vec<Vec<String>>) {
    let help = help(home, parent, UNBROKEN);
    // That of `remex` itself lists them in groups.
    let (first, last) = if parent.is_empty() { ("Usage:", "Options:") } else { ("Commands:", "") };
    let listed = help.lines().skip_while(|line| !line.starts_with(first)).skip(1);
    let listed = listed.take_while(|line| *line != last);
    for line in listed.filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
        let name = line.split_whitespace().next().unwrap_or_default();
        if name == "help" {
            continue;
        }
        let words = [parent, &[name.to_owned()]].concat();
        all.push(words.clone());
        collect(home, &words, all);
    }
}
