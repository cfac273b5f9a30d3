//! What is made of the flags: completions and man pages.

use std::fs;

use crate::{commands::Commands, home::Home};

#[test]
fn static_completion_scripts_cover_every_command() {
    let home = Home::new();
    let commands = Commands::of(&home);
    for shell in ["elvish", "powershell"] {
        let said = home.say(&["completions", shell]);
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{shell}");
        for words in commands.all.iter().filter(|words| words.len() == 1) {
            assert!(said.out.contains(words[0].as_str()), "{shell} completes no `{}`", words[0]);
        }
    }
}

#[test]
fn every_command_has_a_man_page() {
    let home = Home::new();
    let said = home.say(&["man", "--dir", "pages/man1"]);
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (Some(0), "", ""));
    let mut pages: Vec<_> = fs::read_dir(home.path("pages/man1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    pages.sort();
    let mut expected: Vec<_> = Commands::of(&home).all.iter().map(|words| page(words)).collect();
    expected.push("remex.1".to_owned());
    expected.sort();
    assert_eq!(pages, expected);
    let whole = fs::read_to_string(home.path("pages/man1/remex.1")).unwrap();
    assert_eq!(home.say(&["man"]).out, whole);
    for section in ["NAME", "SYNOPSIS", "SUBCOMMANDS", "EXIT CODES", "ENVIRONMENT VARIABLES", "FILES"] {
        let heading = whole.lines().any(|line| line.replace('"', "") == format!(".SH {section}"));
        assert!(heading, "remex.1 has no {section}");
    }
}

/// Returns the file name of a command's page.
pub(crate) fn page(words: &[String]) -> String {
    format!("remex-{}.1", words.join("-"))
}
