//! Help texts, word for word, in the pages of `docs/cli`, and errors in `tests/cli/snapshots`.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test -p remex-cli --test cli snapshots` writes them anew; look at the difference before you
//! commit it.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use crate::{
    commands::{Commands, USUAL, help},
    home::Home,
};

/// Typical mistakes, in a home with the single environment `gone`, where nothing listens.
const ERRORS: &[&[&str]] = &[
    &["frobnicate"],
    &["run"],
    &["run", "--on", "nowhere", "true"],
    &["run", "--on", "gone", "true"],
    &["run", "--on", "ftp://host", "true"],
    &["run", "--timeout", "5", "true"],
    &["run", "no-such-program"],
    &["run", "no-such-program with arguments"],
    &["run", "--on", "user@far.example", "true"],
    &["run", "--on", "127.0.0.1:7070", "true"],
    &["run", "--on", "ws:/far", "true"],
    &["run", "--on", "ssh:far", "true"],
    &["run", "--here", "--on", "gone", "true"],
    &["run", ""],
    &["run", "/dev/null"],
    &["ps", "--on", "gone"],
    &["ps", "--on", "gone", "--token-file", "no-such-file"],
    &["logs", "build"],
    &["attach", "build"],
    &["kill", "build"],
    &["kill", "build", "--signal", "NONSENSE"],
    &["wait", "build"],
    &["resize", "build", "huge"],
    &["top"],
    &["cp", "notes.txt"],
    &["cp"],
    &["cp", "no-such-file", "copy.txt"],
    &["cp", "nowhere:notes.txt", "copy.txt"],
    &["ls", "no-such-directory"],
    &["ls", "gone:"],
    &["cat", "no-such-file"],
    &["cat", "."],
    &["mv", "notes.txt"],
    &["mkdir"],
    &["mkdir", "no-such-directory/new"],
    &["rm", "-r", "build"],
    &["rm", "gone:"],
    &["http"],
    &["http", "localhost:8080/health"],
    &["edit"],
    &["watch", "no-such-directory"],
    &["env"],
    &["env", "add", "dev"],
    &["env", "add", "dev", "ssh", "far.example", "remex", "proxy"],
    &["env", "add", "a b", "ws://127.0.0.1:7070"],
    &["env", "add", "dev", "http://127.0.0.1:7070"],
    &["env", "add", "gone", "ws://127.0.0.1:7070"],
    &["env", "add", "dev", "ssh://far:ssh"],
    &["env", "add", "dev", "ws:/far"],
    &["env", "add", "dev", "ws://me@far"],
    &["env", "add", "dev", "ws://:7070"],
    &["env", "add", "dev", "ws://127.0.0.1:7070", "--install"],
    &["env", "set", "gone"],
    &["env", "set", "dev", "--default"],
    &["env", "remove", "dev"],
    &["env", "test"],
    &["env", "test", "nowhere"],
    &["doctor", "--on", "nowhere"],
    &["serve", "--listen", "nonsense"],
    &["serve", "--listen", "ws://0.0.0.0:0"],
    &["serve", "--listen", "wss://127.0.0.1:0"],
    &["serve", "--listen", "wss://0.0.0.0:0"],
    &["cert", "new", "server", "a b"],
    &["serve", "--listen", "systemd"],
    &["serve", "--listen", "unix:///no-such-directory/remex.sock"],
    &["serve", "--concurrent-requests", "0"],
    &["serve", "--ws-auth", "capability-token", "--ws-token-file", "no-such-file"],
    &["ps", "--on", LONG],
    &["env", "add", "lab", "ws://127.0.0.1:7070", "--token-file", "no-such-file"],
    &["serve", "--ws-token-file", "token.txt"],
    &["serve", "--ws-auth", "signed-bearer-token"],
    &["serve", "--ws-issuer", "us"],
    &["serve", "--max-detach-ttl", "long"],
    &["token", "new", "--scope", "fly"],
    &["token", "new", "--subject", "ann"],
    &["token", "new", "--secret-file", "no-such-file", "--expires", "1h"],
    &["token", "show", "nonsense"],
    &["completions", "tcsh"],
    &["man", "--dir", "/dev/null/pages"],
];

/// An address with a path that is too long for a socket.
const LONG: &str = "unix:///an/address/whose/path/is/too/long/for/a/socket/because/the/kernel/takes/no/more/than/107/bytes/of/one/and/this/has/more";

/// What each page says about itself to people who would edit it.
const MADE: &str =
    "<!-- Made from the help texts: UPDATE_SNAPSHOTS=1 cargo test -p remex-cli --test cli snapshots -->";

#[test]
fn the_reference_matches_the_help_texts() {
    let home = Home::new();
    let all = Commands::of(&home).all;
    let mut pages = BTreeMap::new();
    let links: Vec<_> =
        all.iter().filter(|words| words.len() == 1).map(|words| format!("[{0}]({0}.md)", words[0])).collect();
    let help_of_all = help(&home, &[], USUAL);
    let index = format!("# remex\n\n{MADE}\n\n{}\n\n```text\n{help_of_all}```\n", links.join(" · "));
    pages.insert("README.md".to_owned(), index);
    for words in &all {
        let page = pages.entry(format!("{}.md", words[0])).or_default();
        let (level, note) =
            if words.len() == 1 { ("#", format!("\n{MADE}\n")) } else { ("\n##", String::new()) };
        let text = help(&home, words, USUAL);
        page.push_str(&format!("{level} remex {}\n{note}\n```text\n{text}```\n", words.join(" ")));
    }
    compare("docs/cli", ".md", &home, pages);
}

#[test]
fn errors_match_their_snapshot() {
    let home = Home::new();
    home.add_environment("gone", "ws://127.0.0.1:1");
    let mut text = String::new();
    for arguments in ERRORS {
        let said = home.say(arguments);
        text.push_str(&format!("$ remex {}\n", arguments.join(" ")));
        text.push_str(&said.out);
        text.push_str(&said.err);
        text.push_str(&format!("exit code {}\n\n", said.code.unwrap()));
    }
    compare(
        "crates/remex-cli/tests/cli/snapshots",
        ".txt",
        &home,
        BTreeMap::from([("errors.txt".to_owned(), text)]),
    );
}

/// Compares texts with the files of a folder that end like this, and both ways: a file without a text is stale.
fn compare(folder: &str, ending: &str, home: &Home, found: BTreeMap<String, String>) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let found: BTreeMap<_, _> = found.into_iter().map(|(name, text)| (name, general(home, &text))).collect();
    let stale: Vec<_> =
        files(&directory, ending).into_iter().filter(|name| !found.contains_key(name)).collect();
    if env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::create_dir_all(&directory).unwrap();
        stale.iter().for_each(|name| fs::remove_file(directory.join(name)).unwrap());
        found.iter().for_each(|(name, text)| fs::write(directory.join(name), text).unwrap());
        return;
    }
    let advice =
        "run `UPDATE_SNAPSHOTS=1 cargo test -p remex-cli --test cli snapshots`, and look at the difference";
    assert!(stale.is_empty(), "there is nothing any more for {stale:?}; {advice}");
    for (name, text) in &found {
        let expected = fs::read_to_string(directory.join(name)).unwrap_or_default();
        assert!(
            expected == *text,
            "{folder}/{name} is not what is printed now; {advice}\n--- expected\n{expected}\n--- found\n{text}"
        );
    }
}

fn files(directory: &Path, ending: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(ending)).collect()
}

/// Replaces what differs from version to version and from run to run.
fn general(home: &Home, text: &str) -> String {
    let root: PathBuf = home.path("..");
    let root = fs::canonicalize(root).unwrap().display().to_string();
    text.replace(&root, "USER").replace(env!("CARGO_PKG_VERSION"), "VERSION")
}
