//! What helps people who look for a command: the help in groups, man pages, and suggestions.

use std::fs;

use crate::{
    commands::{Commands, USUAL, help},
    generated::page,
    home::{Home, said},
    support::InTime as _,
};

/// What people type who come from other programs, what must be suggested, and what must not.
const SUGGESTED: &[(&[&str], &str, &str)] = &[
    (&["run", "--rm", "true"], "omit it: `remex run` leaves nothing behind", "did you mean"),
    (&["run", "--detatch", "true"], "did you mean `--detach`?", ""),
    (&["run", "--tty", "true"], "did you mean `--terminal`?", ""),
    (&["run", "--workdir", "/", "true"], "did you mean `--cwd`?", ""),
    (&["logs", "--lines", "5", "build"], "did you mean `--tail`?", ""),
    (&["pause"], "`remex kill NAME --signal STOP`", "prune"),
    (&["unpause"], "`remex kill NAME --signal CONT`", "did you mean"),
    (&["login"], "`remex env add NAME ssh://you@host`", "logs"),
    (&["nohup"], "`remex run --detach -- COMMAND`", "did you mean"),
    (&["rsync"], "did you mean `remex cp`?", ""),
    (&["vim"], "did you mean `remex edit`?", ""),
    // An environment in every place where one is named.
    (&["run", "--on", "biuld", "true"], "did you mean `build`?", ""),
    (&["ps", "--on", "buidl"], "did you mean `build`?", ""),
    (&["cat", "biuld:notes.txt"], "did you mean `build`?", ""),
    (&["cp", "notes.txt", "biuld:"], "did you mean `build`?", ""),
    (&["env", "test", "biuld"], "did you mean `build`?", ""),
    (&["env", "set", "biuld", "--default"], "did you mean `build`?", ""),
    (&["env", "remove", "biuld"], "did you mean `build`?", ""),
    (&["env", "default", "biuld"], "did you mean `build`?", ""),
    (&["run", "--on", "frobnicate", "true"], "known: local, build", "did you mean"),
];

#[test]
fn likely_corrections_are_suggested() {
    let home = Home::new();
    home.add_environment("build", "ws://127.0.0.1:1");
    fs::write(home.path("notes.txt"), "").unwrap();
    for (arguments, shown, not_shown) in SUGGESTED {
        let said = home.say(arguments);
        assert_ne!(said.code, Some(0), "{arguments:?}");
        assert!(said.err.contains(shown), "no `{shown}` for {arguments:?}: {}", said.err);
        let wrong = !not_shown.is_empty() && said.err.contains(not_shown);
        assert!(!wrong, "`{not_shown}` for {arguments:?}: {}", said.err);
    }
}

#[test]
fn a_mistyped_environment_in_the_variable_is_attributed_to_it() {
    let home = Home::new();
    home.add_environment("build", "ws://127.0.0.1:1");
    let mut command = home.remex(&["run", "true"]);
    let said = said(&command.env("REMEX_ON", "biuld").finished());
    assert!(said.err.contains("did you mean `build`?"), "{}", said.err);
    assert!(said.err.contains("unset REMEX_ON"), "{}", said.err);
}

#[test]
fn commands_are_listed_in_groups_that_fit_the_terminal() {
    let home = Home::new();
    for arguments in [&["-h"][..], &["--help"], &["help"]] {
        let said = said(&home.remex(arguments).env("COLUMNS", "80").finished());
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{arguments:?}");
        for (heading, first) in [
            ("Run:", "run"),
            ("Look:", "ps"),
            ("Files:", "cp"),
            ("Hosts:", "env"),
            ("Serve:", "serve"),
            ("Help:", "help"),
            ("Options:", "-h,"),
        ] {
            let below = said.out.lines().skip_while(|line| *line != heading).nth(1).unwrap_or_default();
            assert_eq!(below.split_whitespace().next(), Some(first), "below {heading} of {arguments:?}");
        }
        let long = said.out.lines().find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "{arguments:?}");
    }
}

#[test]
fn the_short_help_of_serve_is_a_third_of_the_long_one() {
    let home = Home::new();
    let lines = |arguments: &[&str]| {
        let said = said(&home.remex(arguments).env("COLUMNS", "100").finished());
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{arguments:?}");
        said.out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (short, long) = (lines(&["serve", "-h"]), lines(&["serve", "--help"]));
    assert!(short.len() * 3 <= long.len(), "{} lines are no third of {}", short.len(), long.len());
    let headings =
        ["Settings:", "Listening:", "Lifetime:", "Clients:", "TLS:", "Processes:", "Records:", "Examples:"];
    for heading in headings {
        for lines in [&short, &long] {
            assert!(lines.iter().any(|line| line == heading), "no heading {heading} in {lines:#?}");
        }
    }
}

#[test]
fn man_page_synopses_show_option_values() {
    let home = Home::new();
    assert_eq!(home.say(&["man", "--dir", "pages"]).code, Some(0));
    for words in &Commands::of(&home).all {
        let page = fs::read_to_string(home.path("pages").join(page(words))).unwrap();
        let synopsis = page.lines().skip_while(|line| line.trim() != ".SH SYNOPSIS");
        let synopsis = synopsis.skip(1).find(|line| !line.starts_with('.')).unwrap();
        let synopsis =
            ["\\fB", "\\fI", "\\fR"].iter().fold(synopsis.to_owned(), |text, font| text.replace(font, ""));
        let synopsis = synopsis.replace("\\-", "-").replace("\\&", "");
        for line in help(&home, words, USUAL).lines() {
            // `  -c, --config <FILE>`, and nothing of the descriptions, which are indented more.
            let Some((names, rest)) = line.strip_prefix("  ").and_then(|line| line.split_once(" <")) else {
                continue;
            };
            let is_option = names.trim_start().starts_with('-') && !names.starts_with("     -");
            let Some((value, _)) = rest.split_once('>').filter(|_| is_option) else { continue };
            let name = names.split(' ').next_back().unwrap();
            assert!(synopsis.contains(&format!("{name} {value}")), "no `{name} {value}` in `{synopsis}`");
        }
    }
    let run = fs::read_to_string(home.path("pages/remex-run.1")).unwrap();
    assert!(run.contains("[\\fB\\-\\-timeout\\fR \\fITIME\\fR]"), "{run}");
    assert!(run.contains("\\fICOMMAND\\fR..."), "{run}");
}
